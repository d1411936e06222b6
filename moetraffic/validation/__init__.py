"""Validation: two-sample tests and classifiers of synthetic against real runs."""
