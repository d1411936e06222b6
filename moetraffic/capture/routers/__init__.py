"""Hooks on routers and on exchanges that bypass torch.distributed."""
