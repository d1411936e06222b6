"""Analog generator: a new run of the captured size from near moments of it."""
