"""Segments: what each rank writes while a capture runs, and the folder that holds them."""
