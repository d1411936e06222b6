"""Mixture-of-experts models, their parallelism, and the loop that trains them."""

from __future__ import annotations

from .corpus import Corpus
from .feedforward import Experts
from .gpt import GPT, Losses
from .moe import MixtureOfExperts
from .parallel import GradientBucket, ParallelGroups, clip, connect, synchronise
from .train import train
from .virtual import train_virtually

__all__ = [
    "GPT",
    "Corpus",
    "Experts",
    "GradientBucket",
    "Losses",
    "MixtureOfExperts",
    "ParallelGroups",
    "clip",
    "connect",
    "synchronise",
    "train",
    "train_virtually",
]
