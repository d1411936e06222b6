"""Hooks on the routers of a model: demand, layer indices, exchanges that bypass torch."""
