"""Service models: the time that a plan needs to carry the true traffic."""
