"""Traces of sampled counts: times of calls, background traffic, streamed to disk."""
