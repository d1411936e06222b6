"""Merge the segments of all ranks into one trace."""
