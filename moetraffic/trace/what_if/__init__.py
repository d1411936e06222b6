"""Traces of the same run on other ranks, with other bytes, dispatcher or placement."""
