"""Noise floors: the statistics of a perfectly balanced router, and sampling noise."""
