"""Heatmaps of a layout's traffic by kind: the stripes that APNet'24 shows."""

from __future__ import annotations

from moetraffic.patterns.grid import MegatronGrid
from moetraffic.patterns.megatron import megatron_pattern
from moetraffic.patterns.presets import preset
from moetraffic.patterns.strategy import Strategy
from moetraffic.patterns.traffic import traffic_matrices
from moetraffic.report.results.pattern import heatmaps

from .chart import Chart

LAYOUTS = ((4, 2, 4), (4, 4, 4), (2, 8, 4))
"""(p, t, d) whose heatmaps APNet'24 shows or that its rule gives."""


def stripes(model: str = "gpt-1.3b") -> dict[str, Chart]:
    """Draw heatmaps of the layouts, by names for their files.

    Parameters
    ----------
    model
        A preset; the layout, not the model, decides where the stripes are.
    """
    found = preset(model)
    drawn = {}
    for p, t, d in LAYOUTS:
        strategy = Strategy(
            grid=MegatronGrid(tp=t, dp=d, pp=p),
            micro_batch=found.micro_batch,
            accumulation=p,
        )
        pattern = megatron_pattern(found.model, strategy, found.gating)
        drawn[f"p{p}-t{t}-d{d}"] = heatmaps(
            traffic_matrices(pattern),
            title=f"(p, t, d) = ({p}, {t}, {d}) on {p * t * d} ranks",
            source=f"Computed for {model}, Megatron's rank order, rings; stripes as in "
            "the heatmap of APNet'24 (HKUST)",
            stage=t * d,
        )
    return drawn
