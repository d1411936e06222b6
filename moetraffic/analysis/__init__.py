"""Traffic statistics of a trace: skew, periodicity, predictability, convergence.

The modules hold pure functions on arrays; ``engine`` applies them to a trace.
"""

from __future__ import annotations

from .comparison import Comparison, Distance, compare
from .conclusion import PARTS, Curve, ExchangeAnalysis, Subject
from .convergence.convergence import Convergence, Trajectory, convergence_of
from .convergence.transient import Transient, initial_transient, stage_means
from .engine import Analysis, analyze, effort
from .forecast.bounds import PredictabilityBounds, limits
from .forecast.forecasting import HORIZONS, Forecasts, forecast
from .forecast.usefulness import Verdict, sentence
from .forecast.within_iteration import WithinIteration, within_iteration
from .network.complexity import Complexity, complexity
from .network.packets import Packets, packets
from .network_statistics import NetworkStatistics
from .noise.floors import NoiseFloor, noise_floor
from .rhythm.on_off import Rhythm, rhythm
from .rhythm.source_statistics import OnOffStatistics, SourceStatistics, beats
from .skew.hot_experts import HotSet, hot_set
from .skew.kernels import MatrixStatistics, matrix_statistics
from .skew.measures import (
    cv,
    entropy,
    gini,
    jain,
    max_over_mean,
    normalized_entropy,
    shares,
)

__all__ = [
    "HORIZONS",
    "PARTS",
    "Analysis",
    "Comparison",
    "Complexity",
    "Convergence",
    "Curve",
    "Distance",
    "ExchangeAnalysis",
    "Forecasts",
    "HotSet",
    "MatrixStatistics",
    "NetworkStatistics",
    "NoiseFloor",
    "OnOffStatistics",
    "Packets",
    "PredictabilityBounds",
    "Rhythm",
    "SourceStatistics",
    "Subject",
    "Trajectory",
    "Transient",
    "Verdict",
    "WithinIteration",
    "analyze",
    "beats",
    "compare",
    "complexity",
    "convergence_of",
    "cv",
    "effort",
    "entropy",
    "forecast",
    "gini",
    "hot_set",
    "initial_transient",
    "jain",
    "limits",
    "matrix_statistics",
    "max_over_mean",
    "noise_floor",
    "normalized_entropy",
    "packets",
    "rhythm",
    "sentence",
    "shares",
    "stage_means",
    "within_iteration",
]
