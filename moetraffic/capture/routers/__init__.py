"""Hooks on the routers of a model: demand, layers, exchanges that bypass torch."""
