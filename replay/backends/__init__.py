"""Communication backends of a replay."""
