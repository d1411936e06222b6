"""Parallelism: process groups, tensor and pipeline parallelism, ZeRO, gradients."""
