"""Execution of a replay on one rank: buffers, verification, timed passes."""
