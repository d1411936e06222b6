"""Sampling noise: noise floors of a balanced router, and the oracle bound of counts."""
