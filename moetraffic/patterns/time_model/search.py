"""The best configuration for some GPUs: all factorizations, estimated at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from moetraffic.arrays import Float64, Int64
from moetraffic.errors import LayoutError
from moetraffic.patterns.layouts.configuration import Configuration
from moetraffic.patterns.layouts.parallelism import RECOMPUTE
from moetraffic.patterns.shape import ModelShape
from moetraffic.patterns.values import Values

from .conventions import SC21, Conventions
from .estimation import Estimate, estimate
from .system import System

COLUMNS = (
    *("pp", "tp", "dp", "ep", "cp", "virtual", "micro_batch", "zero", "recompute"),
    "sequence_parallel",
)


TRIED: Mapping[str, Sequence[float]] = {
    "cp": (1,),
    "virtual": (1, 2, 3, 4),
    "micro_batch": (1, 2, 4, 8, 16),
    "zero": (0, 1, 3),
    "recompute": tuple(map(RECOMPUTE.index, ("none", "selective", "full"))),
    "sequence_parallel": (0, 1),
}
"""Values that are tried where none are given; of pp, tp, dp and ep all that divide."""

MODEL_ERROR = 0.07
"""Relative error of an iteration's time: the mean of a published table whose rows a fit
to all other tables has not seen, in the median of seven tables
(``moetraffic reproduce iteration_times``).  Nearer times are not ranked."""


@dataclass(frozen=True, kw_only=True)
class Search:
    """All configurations that were looked at."""

    estimate: Estimate  # arrays [n], of those that can exist
    order: Int64  # those that fit, the fastest first
    tried: int

    @property
    def unranked(self) -> int:
        """Number of those that fit whose time is within :data:`MODEL_ERROR` of the
        fastest one's: which of them is the fastest, the model cannot say."""
        times = self.estimate.iteration[self.order]
        return int((times <= times[:1] * (1 + MODEL_ERROR)).sum())

    def rows(self, number: int) -> list[dict[str, float]]:
        """The best ones' fields."""
        config = self.estimate.config
        return [
            {
                name: float(np.broadcast_to(getattr(config, name), config.shape)[at])
                for name in COLUMNS
            }
            for at in self.order[:number]
        ]


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
    among: Mapping[str, Sequence[float]] | None = None,
    **same: Values,
) -> Search:
    """Estimate every way to spread a model over some GPUs.

    Parameters
    ----------
    model
        One, no list; ``k`` is among ``same``.
    system
        What it runs on; its ``memory_bytes`` decides what fits.
    gpus, global_batch
        Ranks; sequences of an iteration.
    conventions
        How the terms are counted.
    among
        Values to try of these fields (:data:`COLUMNS`) in place of :data:`TRIED`.
    same
        Fields that all configurations share, as of :class:`Configuration`.

    Raises
    ------
    LayoutError
        If there are no GPUs, or none of the configurations can exist.
    """
    if gpus < 1 or global_batch < 1:
        raise LayoutError(
            f"a search has at least 1 GPU and a batch of 1 sequence, but there are "
            f"{gpus} and {global_batch}: raise --gpus or --global-batch"
        )
    tried_of = {**TRIED, **(among or {})}
    spread = [
        (p, t, gpus // (p * t * c), e, c)
        for p in divisors(gpus)
        if p <= model.layers
        for t in divisors(gpus // p)
        if model.heads % t == 0
        for c in map(int, tried_of["cp"])
        if gpus // (p * t) % c == 0
        for e in (divisors(gpus // (p * t * c)) if model.experts > 0 else [1])
        if e == 1 or model.experts % e == 0
    ]
    spread = [
        sizes
        for sizes in spread
        if all(
            size in tried_of.get(axis, (size,))
            for axis, size in zip(COLUMNS, sizes[:4], strict=False)
        )
    ]
    rest = product(*(tried_of[name] for name in COLUMNS[5:]))
    grid = np.array(list(rest), np.float64)
    ranks = np.array(spread, np.float64).reshape(-1, 5)
    if not len(ranks):
        raise LayoutError(
            f"no pp, tp, dp and ep as given make {gpus} GPUs for this model: change "
            "them, or the GPUs"
        )
    left, right = np.repeat(ranks, len(grid), axis=0), np.tile(grid, (len(ranks), 1))
    every = np.concatenate([left, right], axis=1)
    # what makes no difference is looked at once
    column = dict(zip(COLUMNS, every.T, strict=True))
    more = {name: column[name] > min(tried_of[name]) for name in TRIED}
    twice = (column["tp"] == 1) & more["sequence_parallel"]
    twice |= (column["pp"] == 1) & more["virtual"]
    twice |= (column["dp"] * column["cp"] == 1) & more["zero"]
    every = every[~twice]
    tried = len(every)

    def made(rows: Float64) -> Estimate:
        names = dict(zip(COLUMNS, rows.T, strict=True))
        config = Configuration(
            model=model,
            global_batch=global_batch,
            **same,
            **names,
        )
        # of few ranks, none can be as busy as the busiest of many
        most = np.minimum(config.imbalance, config.most_imbalance)
        config = replace(config, imbalance=most)
        return estimate(config, system, conventions=conventions, strict=False)

    sound = every[made(every).sound]
    if not len(sound):
        raise LayoutError(
            f"no configuration of {gpus} GPUs divides a global batch of {global_batch} "
            "and this model's layers: change the batch or the GPUs"
        )
    found = made(sound)
    fitting = np.flatnonzero(found.fits)
    order = fitting[np.argsort(found.iteration[fitting], kind="stable")]
    return Search(estimate=found, order=order, tried=tried)
