"""Infer steps, layers and phases of a trace that has no annotations."""
