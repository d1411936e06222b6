"""Layers of the models: attention, feed-forward, mixture of experts."""
