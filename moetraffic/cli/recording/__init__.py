"""Verbs that record a run, or prepare it."""
