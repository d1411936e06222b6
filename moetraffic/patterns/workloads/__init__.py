"""Workloads: what is trained, routed and read, and the rules of each."""
