"""Inference of steps, layers and phases where a program does not annotate them."""
