"""Hooks on expert routers and on exchanges that bypass torch.distributed."""
