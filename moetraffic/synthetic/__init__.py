"""Synthetic traffic: surrogates and relabeled copies of runs, and their comparison."""
