"""Traces of sampled counts: times of calls, streamed to disk."""
