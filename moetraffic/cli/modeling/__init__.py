"""Verbs about models and parallel layouts, without a trace."""
