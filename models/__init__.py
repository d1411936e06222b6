"""Mixture-of-experts models, their parallelism, and the loop that trains them."""

from __future__ import annotations

from .corpus import Corpus
from .feedforward import Experts
from .gpt import GPT, Losses
from .gradients import GradientBucket, Shares, clip
from .moe import MixtureOfExperts
from .parallel import ParallelGroups, connect
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
