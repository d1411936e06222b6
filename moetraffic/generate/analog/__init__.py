"""Analog generator: a new run of the captured size from blocks of it."""
