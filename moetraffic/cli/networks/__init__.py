"""Verbs that ask what a network would do with a trace."""
