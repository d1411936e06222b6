"""Traces from what other tools wrote: an importer a format."""
