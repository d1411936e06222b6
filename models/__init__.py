"""Mixture-of-experts models, their parallelism, and the loop that trains them."""

from __future__ import annotations

from .corpus import Corpus
from .gpt import GPT, Losses
from .layers.feedforward import Experts
from .layers.moe import MixtureOfExperts
from .parallelism.gradients import GradientBucket, Shares, clip
from .parallelism.groups import ParallelGroups, connect
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
    "Shares",
    "clip",
    "connect",
    "train",
    "train_virtually",
]
