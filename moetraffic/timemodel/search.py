"""The best layout for some GPUs; what an iteration's time depends on; projection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from moetraffic.arrays import Float64, Int64
from moetraffic.errors import LayoutError
from moetraffic.patterns.layout import Layout
from moetraffic.workload.model import ModelShape
from moetraffic.workload.rules import Values

from .compute import CHOICES, SC21, Conventions
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
        kinds = dict.fromkeys(COLUMNS, int) | {"recompute": str}
        kinds["sequence_parallel"] = bool
        return [
            {name: kinds[name](values[at]) for name, values in columns.items()}
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
    conventions: Conventions = SC21,
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
    # names as places among those that are tried
    rest = [range(len(tried[name])) for name in COLUMNS[5:]]
    grid = np.array(list(product(*rest)), np.int64)
    ranks = np.array(spread, np.int64)
    left, right = np.repeat(ranks, len(grid), axis=0), np.tile(grid, (len(ranks), 1))
    columns: dict[str, npt.NDArray[Any]] = dict(
        zip(COLUMNS[:5], left.T, strict=True)
    ) | {
        name: np.array(tried[name])[places]
        for name, places in zip(COLUMNS[5:], right.T, strict=True)
    }
    # what makes no difference is looked at once
    more = {
        name: columns[name] != min(tried[name])
        for name in ("sequence_parallel", "virtual", "zero")
    }
    twice = (columns["tp"] == 1) & more["sequence_parallel"]
    twice |= (columns["pp"] == 1) & more["virtual"]
    twice |= (columns["dp"] * columns["cp"] == 1) & more["zero"]
    columns = {name: values[~twice] for name, values in columns.items()}
    number = len(columns["pp"])

    def made(keep: npt.NDArray[Any]) -> Estimate:
        own = {name: values[keep] for name, values in columns.items()}
        common: dict[str, Any] = {**same, "global_batch": global_batch}
        layout = Layout(model=model, **common, **own)
        # of few ranks, none can be as busy as the busiest of many
        most = np.minimum(layout.imbalance, layout.arrays().most_imbalance)
        layout = replace(layout, imbalance=most)
        return estimate(layout, system, conventions=conventions, strict=False)

    sound = np.flatnonzero(made(np.arange(number)).sound)
    if not len(sound):
        raise LayoutError(
            f"no configuration of {gpus} GPUs divides a global batch of {global_batch} "
            "and this model's layers: change the batch or the GPUs"
        )
    found = made(sound)
    fitting = np.flatnonzero(found.fits)
    order = fitting[np.argsort(found.iteration[fitting], kind="stable")]
    return Search(estimate=found, system=system, order=order, tried=number)


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


@dataclass(frozen=True, kw_only=True)
class Sensitivity:
    """Of an iteration's time."""

    elasticities: dict[str, Float64]  # by input: percent of T_iter a percent of it
    conventions: dict[str, Float64]  # by "field=choice": T_iter over T_iter, less 1


def sensitivity(
    layout: Layout,
    system: System,
    *,
    conventions: Conventions = SC21,
    step: float = 0.01,
) -> Sensitivity:
    """Elasticities of an iteration's time to each input, and what conventions change.

    ``d ln T/d ln x`` by central differences in ``ln x``, a bandwidth of a kind by its
    time.  Inputs that are 0 or infinite have none and are left out.  Under a bottleneck
    that changes (overlap that is just used up) it is the mean of both sides.
    """

    def time(layout: Layout, system: System, **changed: str) -> Float64:
        of = replace(conventions, **changed)
        return estimate(layout, system, conventions=of).iteration

    factors = (1 + step, 1 / (1 + step))
    inputs: dict[str, list[tuple[Layout, System]]] = {}
    for name in INPUTS:
        value = getattr(system, name)
        if np.all((value > 0) & np.isfinite(value)):
            scaled = [replace(system, **{name: value * f}) for f in factors]
            inputs[name] = [(layout, changed) for changed in scaled]
    for kind in KINDS:
        links = [_Scaled(system, kind, f) for f in factors]
        scaled = [replace(system, bandwidth=link, latency_s=0.0) for link in links]
        inputs[f"bandwidth of {kind}"] = [(layout, changed) for changed in scaled]
    known = replace(layout, gradient_dtype=layout.gradient_bytes)
    for name, field in STORED.items():
        value = np.asarray(getattr(layout, name), np.float64)
        most = layout.arrays().most_imbalance
        if name == "imbalance" and np.any(value * (1 + step) > most):
            continue  # no rank can be busier
        inputs[name] = [(replace(known, **{field: value * f}), system) for f in factors]
    found = {}
    for name, ends in inputs.items():
        more, less = (time(*end) for end in ends)
        slope = np.log(more / less) / (2 * np.log(1 + step))
        if name in INPUTS or np.any(slope):
            found[name] = np.asarray(slope)
    base = time(layout, system)
    choices = {
        f"{field}={choice}": time(layout, system, **{field: choice}) / base - 1
        for field, every in CHOICES.items()
        for choice in every
        if choice != getattr(conventions, field)
    }
    return Sensitivity(elasticities=found, conventions=choices)


@dataclass(frozen=True)
class _Scaled:
    """A system's links, those of one kind of traffic times a factor."""

    system: System
    kind: str
    factor: float

    def speed(self, calls: Traffic) -> Float64:
        """Bytes/s that a rank of this group sends."""
        factor = self.factor if calls.kind == self.kind else 1
        return self.system.speed(calls) * factor

    def latency(self, calls: Traffic) -> Float64:
        """Seconds that messages of these calls wait for each other."""
        return self.system.latency(calls)


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
