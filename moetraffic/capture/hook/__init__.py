"""Dispatcher hooks on torch.distributed collectives, and their completion times."""
