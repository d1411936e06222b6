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

from moetraffic.data import published
from moetraffic.patterns.layouts.parallelism import Parallelism
from moetraffic.patterns.presets import preset
from moetraffic.patterns.time_model import (
    APNET24,
    Configuration,
    Conventions,
    System,
    estimate,
)
from moetraffic.tables import Table

from .study import Study, rounded

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


def reproduce() -> Study:
    """Recompute the process groups, traffic matrices and time estimates of APNet'24."""
    return Study(
        name="apnet24",
        title="Communication characteristics of distributed training",
        source="HKUST iSING Lab, APNet'24",
        tables=(
            _groups(),
            *(_stripes(layout) for layout in LAYOUTS),
            _estimates(),
            _bubbles(),
            _conventions(),
        ),
        not_reproducible=(
            "the measured and estimated bars of the four configurations and with them "
            "the accuracy of about 90%, because they have no numbers, and the study "
            "says neither (p, t, d), batch, sequence length nor bandwidth: ours are "
            "for assumed ones, at three bandwidths",
            "the curves of effective bandwidth over message size, because they have no "
            "numbers: moetraffic bench measures them",
            "the matrices of the 760M MoE model, because its shape is not stated: "
            "the preset gpt-moe-760m of moetraffic capture has an assumed one",
        ),
        notes=(
            "stripes: distance of two ranks that exchange bytes; the order of ranks is "
            "Megatron-LM's (tp fastest, then dp, then pp), rings inside groups",
            "T_TP is not legible in the study; it is read as m (l/p) n [2(t-1)/t "
            "2bsh]/C with n = 4 all-reduces a layer, 6 with full recomputation",
            "the study prints N where T_DP needs the rank's N/(p t): the table of "
            "conventions shows what that changes",
            "with T_DP its R_bubble is below (p-1)/(p-1+m), which leaves it out",
        ),
    )


def _groups() -> Table:
    p, t, d = LAYOUTS[0]
    layout = Parallelism(pp=p, tp=t, dp=d)
    rows = []
    for kind, drawn in DRAWN.items():
        ours = layout.groups(kind)
        same = all(group in ours for group in drawn)
        rows.append((kind, _words(drawn), _words(ours[: len(drawn)]), len(ours), same))
    return Table(
        title="Groups of (p, t, d) = (4, 2, 4) on 32 GPUs",
        columns=("kind", "published", "ours", "groups in all", "same"),
        rows=rows,
    )


def _words(groups: tuple[tuple[int, ...], ...]) -> str:
    return " ".join("{" + ",".join(map(str, g)) + "}" for g in groups)


def _stripes(sizes: tuple[int, int, int]) -> Table:
    """Tabulate rank distances, pairs and bytes of each traffic kind for GPT-3B."""
    p, t, d = sizes
    layout = Parallelism(pp=p, tp=t, dp=d)
    shape = preset("gpt-3b").model
    # heads and layers of the preset divide by these
    config = Configuration(
        model=shape,
        pp=p,
        tp=t,
        dp=d,
        micro_batch=1,
        global_batch=BATCH * d,
        dtype="float16",
    )
    wire = estimate(config, System(peak_flops=1e12), conventions=APNET24).wire
    rows = []
    for kind in ("tp", "dp", "pp", "embedding"):
        pairs = set(_edges(layout, kind))
        distances = sorted({abs(a - b) for a, b in pairs})
        expected = _expected(kind, sizes)
        rows.append(
            (
                kind,
                ", ".join(map(str, expected)),
                ", ".join(map(str, distances)),
                distances == expected,
                len(pairs),
                round(float(wire[kind]) / 1e9, 3),
            )
        )
    return Table(
        title=f"Stripes of (p, t, d) = {sizes}: {layout.world} GPUs, GPT-3B",
        columns=("traffic", "from t, d, p", "ours", "same", "pairs", "GB sent a GPU"),
        rows=rows,
    )


def _edges(layout: Parallelism, kind: str) -> Iterator[tuple[int, int]]:
    """Yield the rank pairs that communicate: ring and pipeline neighbors."""
    for group in layout.groups(kind):
        if kind == "pp":
            for a, b in pairwise(group):
                yield from ((a, b), (b, a))
        elif len(group) > 1:
            yield from zip(group, (*group[1:], group[0]), strict=True)


def _expected(kind: str, sizes: tuple[int, int, int]) -> list[int]:
    """Compute the expected rank distances of a traffic kind from (p, t, d)."""
    p, t, d = sizes
    if kind == "pp":
        return [t * d]
    if kind == "embedding":
        return [t * d * (p - 1)]
    stride, ranks = {"tp": (1, t), "dp": (t, d)}[kind]
    return sorted({stride, stride * (ranks - 1)})


def _configurations() -> Iterator[tuple[str, Configuration, System]]:
    """Yield name, layout and system of each of the four configurations."""
    for row in published("hkust_configs"):
        gpus, size = int(row["gpus"]), float(row["model_params_B"])
        p, t, d = ASSUMED[gpus]
        # an odd number of heads (GPT-2 XL has 25) does not split: 32 are assumed
        shape = preset(SHAPES[size]).model
        config = Configuration(
            model=replace(shape, heads=32),
            pp=p,
            tp=t,
            dp=d,
            micro_batch=1,
            global_batch=BATCH * d,
            dtype="float16",
            recompute="full",
        )
        name = f"{gpus} {row['gpu']}, {size:g}B, assumed ({p},{t},{d})"
        system = System(
            peak_flops=PEAKS[row["gpu"]],
            utilization=float(row["u_assumed"]),
            bandwidth=BANDWIDTHS[1],
        )
        yield name, config, system


def _estimates() -> Table:
    rows = []
    for name, config, system in _configurations():
        for speed in BANDWIDTHS:
            sped = replace(system, bandwidth=speed)
            found = estimate(config, sped, conventions=APNET24)
            numbers = (
                *(found.compute, found.tp, found.pp, found.dp, found.bubble),
                *(found.iteration, found.bubble_share, found.comm_share),
            )
            rows.append((name, None, speed / 1e9, *rounded(numbers, 4)))
    return Table(
        title="The four configurations (published: bars without numbers)",
        columns=(
            *("configuration", "published", "C GB/s", "T_comp", "T_TP", "T_PP"),
            *("T_DP", "T_bubble", "T_iter", "R_bubble", "R_comm"),
        ),
        rows=rows,
        unit="s",
    )


def _bubbles() -> Table:
    """Compare pipeline-bubble shares by formula and by the time model's terms."""
    rows = []
    for name, config, system in _configurations():
        p, m = float(config.pp), float(config.accumulation)
        found = estimate(config, system, conventions=APNET24)
        without = float(found.bubble / (found.iteration - found.dp))
        formula = (p - 1) / (p - 1 + m)
        rows.append(
            (
                name,
                *rounded((formula, without), 6),
                round(without / formula - 1, 9),
                *rounded((found.bubble_share, found.bubble_of_ideal), 6),
            )
        )
    return Table(
        title="R_bubble",
        columns=(
            *("configuration", "(p-1)/(p-1+m)", "ours without T_DP", "error"),
            *("ours with T_DP", "(p-1)/m, SC'21"),
        ),
        rows=rows,
        unit="share",
    )


def _conventions() -> Table:
    """Compare the iteration time under different published model conventions."""
    name, config, system = next(_configurations())
    choices = {
        "as the study (8 N tokens, N/(pt) reduced)": APNET24,
        "N reduced by each rank": Conventions(flops="parameters", reduced="whole"),
        "FLOP by layers (SC'21)": Conventions(),
        "bubble without communication (SC'21)": Conventions(
            flops="parameters", bubble="compute"
        ),
        "vocabulary-parallel ends counted": Conventions(
            flops="parameters", ends="counted"
        ),
    }
    rows = []
    base = float(estimate(config, system, conventions=APNET24).iteration)
    for what, conventions in choices.items():
        found = estimate(config, system, conventions=conventions)
        change = float(found.iteration) / base - 1
        shares = found.comm_share, found.waiting_share
        rows.append((what, *rounded((found.iteration, *shares, change), 4)))
    return Table(
        title=f"Conventions: {name} at {BANDWIDTHS[1] / 1e9:g} GB/s",
        columns=(
            *("convention", "T_iter s", "R_comm"),
            *("R_comm, bubble counted", "change of T_iter"),
        ),
        rows=rows,
    )
