"""Segments: what each rank writes while a capture runs, and their folder."""
