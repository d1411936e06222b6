"""Traffic statistics of a trace: skew, periodicity, predictability, convergence.

The modules hold pure functions on arrays; ``engine`` applies them to a trace.
"""

from .comparison import Comparison, compare
from .conclusion import PARTS, Curve, ExchangeAnalysis, Subject
from .convergence.convergence import Trajectory
from .convergence.transient import initial_transient, stage_means
from .engine import Analysis, analyze, effort
from .forecast.usefulness import sentence
from .noise.floors import noise_floor
from .rhythm.on_off import Rhythm
from .rhythm.source_statistics import OnOffStatistics, SourceStatistics
from .skew.measures import cv, normalized_entropy, shares

__all__ = [
    "PARTS",
    "Analysis",
    "Comparison",
    "Curve",
    "ExchangeAnalysis",
    "OnOffStatistics",
    "Rhythm",
    "SourceStatistics",
    "Subject",
    "Trajectory",
    "analyze",
    "compare",
    "cv",
    "effort",
    "initial_transient",
    "noise_floor",
    "normalized_entropy",
    "sentence",
    "shares",
    "stage_means",
]
