"""The best layout for some GPUs; what an iteration's time depends on; projection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

from moetraffic.arrays import Float64, Int64
from moetraffic.errors import LayoutError
from moetraffic.patterns.layout import Layout
from moetraffic.patterns.rules import sound
from moetraffic.workload.model import ModelShape
from moetraffic.workload.rules import Values

from .estimate import Estimate, estimate
from .system import System
from .traffic import KINDS, Traffic

COLUMNS = (
    *("pp", "tp", "dp", "ep", "cp", "virtual", "micro_batch", "zero", "recompute"),
    "sequence_parallel",
)
"""Fields that a search varies."""

TRIED: Mapping[str, Sequence[Any]] = {
    "cp": (1,),
    "virtual": (1, 2, 3, 4),
    "micro_batch": (1, 2, 4, 8, 16),
    "zero": (0, 1, 3),
    "recompute": ("none", "selective", "full"),
    "sequence_parallel": (False, True),
}
"""Values that are tried where none are given; of pp, tp, dp and ep all that divide."""

MODEL_ERROR = 0.08
"""Relative error of an iteration's time: the mean of a published table whose rows a fit
to all other tables has not seen, in the median of nine tables
(``python -m moetraffic.studies iteration_times``).  Nearer times are not ranked."""

COMPARED = ("A100", "H100")
"""GPUs of which published runs were compared with the model."""


# ---- the best layout -----------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Search:
    """All layouts that were looked at."""

    estimate: Estimate  # arrays [n], of those that can exist
    system: System
    order: Int64  # those that fit, the fastest first
    tried: int

    @property
    def unranked(self) -> int:
        """Number of those that fit whose time is within :data:`MODEL_ERROR` of the
        fastest one's: which of them is the fastest, the model cannot say."""
        times = self.estimate.iteration[self.order]
        return int((times <= times[:1] * (1 + MODEL_ERROR)).sum())

    def at(self, number: int) -> Estimate:
        """Return the estimate of the best, the second best ... alone."""
        layout = self.estimate.config.at(int(self.order[number]))
        return estimate(layout, self.system)

    def rows(self, number: int) -> list[dict[str, Any]]:
        """Return the varied fields of the best ones."""
        layout = self.estimate.config
        columns = {
            name: np.broadcast_to(getattr(layout, name), layout.shape)
            for name in COLUMNS
        }
        kinds: dict[str, type] = {"recompute": str, "sequence_parallel": bool}
        return [
            {name: kinds.get(name, int)(v[at]) for name, v in columns.items()}
            for at in self.order[:number]
        ]


def shared(layout: Layout) -> dict[str, Any]:
    """Return the fields of a layout that all layouts of a search have."""
    varied = (*COLUMNS, "model", "accumulation")
    names = [f.name for f in fields(layout) if f.name not in varied]
    return {name: getattr(layout, name) for name in names}


def divisors(number: int) -> list[int]:
    """Ascending."""
    small = [n for n in range(1, int(number**0.5) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)})


def search(
    model: ModelShape,
    system: System,
    *,
    gpus: int,
    global_batch: int,
    among: Mapping[str, Sequence[Any]] | None = None,
    **same: Values,
) -> Search:
    """Estimate every way to spread a model over some GPUs.

    ``among`` has values to try of COLUMNS in place of TRIED, ``same`` fields of Layout
    that all share; the system's ``memory_bytes`` decides what fits.

    Raises
    ------
    LayoutError
        If there are no GPUs, or none of the layouts can exist.
    """
    if gpus < 1 or global_batch < 1:
        raise LayoutError(
            f"a search has at least 1 GPU and a batch of 1 sequence, but there are "
            f"{gpus} and {global_batch}: raise --gpus or --global-batch"
        )
    tried = {**TRIED, **(among or {})}
    spread = [
        (p, t, d, e, c)
        for p in divisors(gpus)
        if p <= model.layers
        for t in divisors(gpus // p)
        if model.heads % t == 0
        for c in map(int, tried["cp"])
        if gpus // (p * t) % c == 0
        for d in [gpus // (p * t * c)]
        for e in (divisors(d) if model.experts > 0 else [1])
        if (e == 1 or model.experts % e == 0)
        and all(
            size in tried.get(axis, (size,))
            for axis, size in zip(COLUMNS, (p, t, d, e), strict=False)
        )
    ]
    if not spread:
        raise LayoutError(
            f"no pp, tp, dp and ep as given make {gpus} GPUs for this model: change "
            "them, or the GPUs"
        )
    rest = list(product(*(tried[name] for name in COLUMNS[5:])))
    rows = zip(*((*sizes, *more) for sizes in spread for more in rest), strict=True)
    columns = {name: np.array(row) for name, row in zip(COLUMNS, rows, strict=True)}
    # what makes no difference is looked at once
    useless = {
        "sequence_parallel": columns["tp"] == 1,
        "virtual": columns["pp"] == 1,
        "zero": columns["dp"] * columns["cp"] == 1,
    }
    keep = np.ones(len(spread) * len(rest), bool)
    for name, alike in useless.items():
        keep &= ~(alike & (columns[name] != min(tried[name])))

    def layouts(keep: npt.NDArray[Any]) -> Layout:
        own = {name: values[keep] for name, values in columns.items()}
        common: dict[str, Any] = {**same, "global_batch": global_batch}
        layout = Layout(model=model, **common, **own)
        # of few ranks, none can be as busy as the busiest of many
        most = np.minimum(layout.imbalance, layout.arrays().most_imbalance)
        return replace(layout, imbalance=most)

    different = np.flatnonzero(keep)
    possible = different[sound(layouts(different).arrays())]
    if not len(possible):
        raise LayoutError(
            f"no configuration of {gpus} GPUs divides a global batch of {global_batch} "
            "and this model's layers: change the batch or the GPUs"
        )
    found = estimate(layouts(possible), system)
    fitting = np.flatnonzero(found.fits)
    order = fitting[np.argsort(found.iteration[fitting], kind="stable")]
    return Search(estimate=found, system=system, order=order, tried=len(different))


# ---- sensitivity ---------------------------------------------------------------------

INPUTS = (
    *("peak_flops", "utilization", "latency_s", "layer_overhead_s"),
    *("iteration_overhead_s", "memory_bytes_s", "optimizer_bytes"),
)
"""Numbers of a system."""

STORED = {
    "element_bytes": "dtype",
    "gradient_bytes": "gradient_dtype",
    "imbalance": "imbalance",
}
"""Properties of a layout and the fields that give them."""


def sensitivity(
    layout: Layout, system: System, *, step: float = 0.01
) -> dict[str, Float64]:
    """Elasticities of an iteration's time: percent of it a percent of an input.

    ``d ln T/d ln x`` by central differences in ``ln x``, a bandwidth of a kind by its
    time.  Inputs that are 0 or infinite have none and are left out.  Under a bottleneck
    that changes (overlap that is just used up) it is the mean of both sides.
    """

    def faster(kind: str, factor: float) -> System:
        def speed(calls: Traffic) -> Float64:
            return system.speed(calls) * (factor if calls.kind == kind else 1)

        links = SimpleNamespace(speed=speed, latency=system.latency)
        return replace(system, bandwidth=links, latency_s=0.0)

    pairs: dict[str, list[tuple[Layout, System]]] = {}
    factors = (1 + step, 1 / (1 + step))
    for name in INPUTS:
        value = getattr(system, name)
        if np.all((value > 0) & np.isfinite(value)):
            scaled = [replace(system, **{name: value * f}) for f in factors]
            pairs[name] = [(layout, changed) for changed in scaled]
    for kind in KINDS:
        pairs[f"bandwidth of {kind}"] = [(layout, faster(kind, f)) for f in factors]
    stored = replace(layout, gradient_dtype=layout.gradient_bytes)
    for name, field in STORED.items():
        held: Any = np.asarray(getattr(layout, name), np.float64)
        most = layout.arrays().most_imbalance
        if name == "imbalance" and np.any(held * (1 + step) > most):
            continue  # no rank can be busier
        pairs[name] = [(replace(stored, **{field: held * f}), system) for f in factors]
    slopes = {}
    for name, ends in pairs.items():
        more, less = (estimate(*end).iteration for end in ends)
        slope = np.log(more / less) / (2 * np.log(1 + step))
        if name in INPUTS or np.any(slope):
            slopes[name] = np.asarray(slope)
    return slopes


# ---- projection ----------------------------------------------------------------------


def projected_speedup(
    compute: npt.ArrayLike, communication: npt.ArrayLike, efficiency: npt.ArrayLike
) -> Float64:
    """Speedup of an iteration from g to n GPUs, what each computes staying the same.

    ``t(g)/t(n) = (r_comp + r_comm)/(r_comp + r_comm/eff)``: Cheng et al.,
    SIGMETRICS'24.  ``eff`` is the network's efficiency on n GPUs over that on g.  Below
    1, n GPUs are slower an iteration; their throughput is ``n/g`` times the speedup.
    Times or shares of an iteration on g GPUs, any unit, nothing overlapped.

    Examples
    --------
    >>> f"{projected_speedup(0.8, 0.2, 0.5):.4f}"
    '0.8333'
    """
    work = np.asarray(compute, np.float64)
    sent = np.asarray(communication, np.float64)
    eff = np.asarray(efficiency, np.float64)
    if (eff <= 0).any() or (work < 0).any() or (sent < 0).any():
        raise LayoutError(
            "a projection has times of at least 0 and an efficiency above 0, but "
            f"{work.min():g}, {sent.min():g} and {eff.min():g}: change them"
        )
    return np.asarray((work + sent) / (work + sent / eff))
