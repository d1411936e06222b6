"""Verbs that analyze traces and compare them."""
