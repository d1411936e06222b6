"""Measures of traffic: skew, rhythm, predictability, convergence, with noise floors.

The modules hold pure functions on arrays; ``engine`` applies them to a trace.
"""

from __future__ import annotations

from .conclusion import Curve, Subject
from .convergence import Settling, Trend, settling, stage_means, trend
from .engine import Analysis, Exchange, analyze
from .floors import NoiseFloor, noise_floor
from .predictability import Scores, evaluate
from .rhythm import Rhythm, rhythm
from .skew import cv, entropy, gini, jain, max_over_mean, normalised_entropy, shares

__all__ = [
    "Analysis",
    "Curve",
    "Exchange",
    "NoiseFloor",
    "Rhythm",
    "Scores",
    "Settling",
    "Subject",
    "Trend",
    "analyze",
    "cv",
    "entropy",
    "evaluate",
    "gini",
    "jain",
    "max_over_mean",
    "noise_floor",
    "normalised_entropy",
    "rhythm",
    "settling",
    "shares",
    "stage_means",
    "trend",
]
