"""HKUST study (APNet'24): communication patterns and time formulas of GPT training.

References
----------
"Understanding Communication Characteristics of Distributed Training", APNet'24: the
matrices of (p, t, d), the formulas of T_comp, T_TP, T_PP, T_DP and T_bubble, the four
configurations of the estimate.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

from moetraffic.data import published
from moetraffic.patterns import Layout, preset
from moetraffic.result import Result
from moetraffic.timemodel import Estimate, System, estimate, operations, traffic

from .study import Rows, recomputed, rounded, table

LAYOUTS = ((4, 2, 4), (4, 4, 4), (2, 8, 4))
"""(p, t, d) whose matrices the study shows."""

DRAWN = {
    "tp": ((0, 1), (2, 3), (4, 5), (6, 7)),
    "dp": ((0, 2, 4, 6), (1, 3, 5, 7)),
    "pp": ((0, 8, 16, 24), (1, 9, 17, 25)),
}
"""Of (4, 2, 4) on 32 GPUs, the groups of the first stage, and two pipelines."""

SHAPES = {1.5: "gpt-1.5b", 3.0: "gpt-3b"}
PEAKS = {"RTX3090": 71e12, "V100": 125e12}
"""FLOP/s of fp16 with fp32 accumulation: GA102's white paper; V100 SXM2's datasheet."""

ASSUMED = {16: (4, 2, 2), 32: (4, 2, 4), 4: (2, 2, 1), 8: (2, 2, 2)}
"""Assumed (p, t, d) by number of GPUs; not published."""

BATCH = 16
"""Assumed micro-batches per pipeline, of one sequence each; not published."""

BANDWIDTHS = (1.25e9, 5e9, 12.5e9)
"""Effective bytes/s that are tried; the study measured its own, without numbers."""


def reproduce() -> Result:
    """Recompute the process groups, traffic matrices and time estimates of APNet'24."""
    stripes = {
        "stripes_{}_{}_{}".format(*layout): (
            f"(p, t, d) = {layout}, GPT-3B: distances of ranks that exchange bytes; tp "
            "fastest, then dp, then pp (Megatron-LM), rings inside groups",
            _stripes(layout),
        )
        for layout in LAYOUTS
    }
    return recomputed(
        "apnet24",
        "communication characteristics of distributed training, HKUST, APNet'24",
        {
            "groups": ("groups of (p, t, d) = (4, 2, 4) on 32 GPUs", _groups()),
            **stripes,
            "estimates": (
                "times in s; T_TP is not legible in the study, it is read as m (l/p) n "
                "[2(t-1)/t 2bsh]/C, n = 4 all-reduces a layer, 6 with recomputation",
                _estimates(),
            ),
            "bubble": ("published: (p-1)/(p-1+m), without T_DP", _bubbles()),
        },
        (
            "bars of the four configurations, their accuracy of 90%, because they have "
            "no numbers, and (p, t, d), batch, sequence and bandwidth are not given: "
            "ours are for assumed ones",
            "effective bandwidth over message size, because the curves have no numbers",
            "matrices of the 760M MoE model, because its shape is not given: the "
            "preset gpt-moe-760m has an assumed one",
        ),
    )


def counted(layout: Layout, system: System) -> Estimate:
    """Estimate with FLOP and volumes as the study counts them.

    ``8 N/(p t) b s`` FLOP of a micro-batch, a quarter of them forward again, gradients
    of ``N/(p t)`` parameters, and no traffic of vocabulary-parallel ends; ``layout`` is
    a GPT without ZeRO under 1F1B.
    """
    c = layout.arrays()
    held = c.sizes.parameters / (c.pp * c.tp)
    rows = [
        replace(row, buffer=held * c.gradient_bytes) if row.kind == "dp" else row
        for row in traffic(layout)
        if row.kind != "ends"
    ]
    flop = 2 * (3.0 + (c.recompute == "full")) * held * c.tokens
    share = operations(layout).all / flop
    system = replace(system, utilization=system.utilization * share)
    return estimate(layout, system, moved=rows)


def _configuration(layout: tuple[int, int, int], **more: Any) -> Layout:
    p, t, d = layout
    sizes = {"pp": p, "tp": t, "dp": d, "micro_batch": 1, "global_batch": BATCH * d}
    return Layout(**{**sizes, "dtype": "float16", **more})


def _groups() -> Rows:
    p, t, d = LAYOUTS[0]
    rows = []
    for kind, drawn in DRAWN.items():
        ours = Layout(pp=p, tp=t, dp=d).groups(kind)
        words = (
            " ".join("{" + ",".join(map(str, g)) + "}" for g in groups)
            for groups in (drawn, ours[: len(drawn)])
        )
        rows.append((kind, *words, len(ours), all(group in ours for group in drawn)))
    return table("kind published ours groups same", rows)


def _stripes(layout: tuple[int, int, int]) -> Rows:
    """Tabulate rank distances, pairs and bytes of each kind of traffic of GPT-3B."""
    p, t, d = layout
    config = _configuration(layout, model=preset("gpt-3b").model)
    wire = counted(config, System(peak_flops=1e12)).wire
    expected = {
        "tp": sorted({1, t - 1}),
        "dp": sorted({t, t * (d - 1)}),
        "pp": [t * d],
        "embedding": [t * d * (p - 1)],
    }
    rows = []
    for kind, distances in expected.items():
        pairs = set(_edges(Layout(pp=p, tp=t, dp=d), kind))
        ours = sorted({abs(a - b) for a, b in pairs})
        both = (", ".join(map(str, words)) for words in (distances, ours))
        sent = round(float(wire[kind]) / 1e9, 3)
        rows.append((kind, *both, ours == distances, len(pairs), sent))
    return table("traffic from_t_d_p ours same pairs sent_gb_per_gpu", rows)


def _edges(layout: Layout, kind: str) -> Iterator[tuple[int, int]]:
    """Yield the rank pairs that communicate: ring and pipeline neighbors."""
    for group in layout.groups(kind):
        if kind == "pp":
            for a, b in pairwise(group):
                yield from ((a, b), (b, a))
        elif len(group) > 1:
            yield from zip(group, (*group[1:], group[0]), strict=True)


def _configurations() -> Iterator[tuple[str, Layout, System]]:
    """Yield name, layout and system of each of the four configurations."""
    for row in published("hkust_configs"):
        gpus, size = int(row["gpus"]), float(row["model_params_B"])
        layout = ASSUMED[gpus]
        # an odd number of heads (GPT-2 XL has 25) does not split: 32 are assumed
        model = replace(preset(SHAPES[size]).model, heads=32)
        system = System(
            peak_flops=PEAKS[row["gpu"]],
            utilization=float(row["u_assumed"]),
            bandwidth=BANDWIDTHS[1],
        )
        name = f"{gpus} {row['gpu']}, {size:g}B, assumed ({','.join(map(str, layout))})"
        yield name, _configuration(layout, model=model, recompute="full"), system


def _estimates() -> Rows:
    rows = []
    for name, config, system in _configurations():
        for speed in BANDWIDTHS:
            e = counted(config, replace(system, bandwidth=speed))
            times = (e.compute, e.tp, e.pp, e.dp, e.bubble, e.iteration)
            cells = rounded((*times, e.bubble_share, e.comm_share), 4)
            rows.append((name, None, speed / 1e9, *cells))
    names = "configuration published C_gbs T_comp T_TP T_PP T_DP T_bubble T_iter"
    return table(f"{names} R_bubble R_comm", rows)


def _bubbles() -> Rows:
    """Compare pipeline-bubble shares by formula and by the time model's terms."""
    rows = []
    for name, config, system in _configurations():
        p, m = float(config.pp), float(config.accumulation)
        e = counted(config, system)
        without = float(e.bubble / (e.iteration - e.dp))
        formula = (p - 1) / (p - 1 + m)
        pair = rounded((formula, without), 6)
        both = rounded((e.bubble_share, e.bubble_of_ideal), 6)
        rows.append((name, *pair, round(without / formula - 1, 9), *both))
    return table("configuration published ours error with_T_DP of_ideal", rows)
