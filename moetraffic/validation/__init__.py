"""Validation: two-sample tests and classifiers that compare synthetic with real runs."""
