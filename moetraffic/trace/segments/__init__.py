"""Segments: files that each rank writes during a capture, and their folder."""
