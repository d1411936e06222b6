"""Verbs that read, convert, make and test traces."""
