"""The hook on torch.distributed, in Python and compiled, and the times of calls."""
