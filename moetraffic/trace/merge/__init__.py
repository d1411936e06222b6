"""Merge the records of all ranks into one trace."""
