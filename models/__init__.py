"""Mixture-of-experts models, their parallelism and training loops."""

from .corpus import Corpus
from .encoders import language_model
from .gpt import GPT, Losses
from .layers.moe import MixtureOfExperts
from .parallelism.gradients import GradientBucket, ParameterSets, clip
from .parallelism.groups import connect
from .train import train
from .virtual_training import train_virtually

__all__ = [
    "GPT",
    "Corpus",
    "GradientBucket",
    "Losses",
    "MixtureOfExperts",
    "ParameterSets",
    "clip",
    "connect",
    "language_model",
    "train",
    "train_virtually",
]
