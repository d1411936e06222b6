"""Benchmark of collective communication, measured as in nccl-tests."""
