"""Measures of traffic: skew, rhythm, predictability, convergence, with noise floors.

The modules hold pure functions on arrays; ``engine`` applies them to a trace.
"""

from __future__ import annotations

from .beats import Beat, Beats, beats
from .comparison import Comparison, Distance, compare
from .complexity import Complexity, complexity
from .conclusion import PARTS, Curve, Subject
from .convergence import (
    Convergence,
    Course,
    Settling,
    convergence_of,
    settling,
    stage_means,
)
from .engine import Analysis, Exchange, analyze, effort
from .floors import NoiseFloor, noise_floor
from .forecasting import HORIZONS, Forecasts, forecast
from .hot_set import HotSet, hot_set
from .kernel import MatrixStatistics, matrix_statistics
from .limits import Limits, limits
from .network import Network
from .packets import Packets, packets
from .predictability import Scores, evaluate
from .rhythm import Rhythm, rhythm
from .skew import cv, entropy, gini, jain, max_over_mean, normalised_entropy, shares
from .trends import Trend, trend
from .verdict import Verdict, sentence
from .within_iteration import Sight, within_iteration

__all__ = [
    "HORIZONS",
    "PARTS",
    "Analysis",
    "Beat",
    "Beats",
    "Comparison",
    "Complexity",
    "Convergence",
    "Course",
    "Curve",
    "Distance",
    "Exchange",
    "Forecasts",
    "HotSet",
    "Limits",
    "MatrixStatistics",
    "Network",
    "NoiseFloor",
    "Packets",
    "Rhythm",
    "Scores",
    "Settling",
    "Sight",
    "Subject",
    "Trend",
    "Verdict",
    "analyze",
    "beats",
    "compare",
    "complexity",
    "convergence_of",
    "cv",
    "effort",
    "entropy",
    "evaluate",
    "forecast",
    "gini",
    "hot_set",
    "jain",
    "limits",
    "matrix_statistics",
    "max_over_mean",
    "noise_floor",
    "normalised_entropy",
    "packets",
    "rhythm",
    "sentence",
    "settling",
    "shares",
    "stage_means",
    "trend",
    "within_iteration",
]
