"""The best configuration for some GPUs: all factorizations, estimated at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import numpy.typing as npt

from moetraffic.errors import LayoutError
from moetraffic.patterns.layouts.configuration import RECOMPUTE, Configuration
from moetraffic.patterns.shape import ModelShape
from moetraffic.patterns.values import Values

from .conventions import SC21, Conventions
from .estimation import Estimate, estimate
from .system import System

COLUMNS = (
    *("pp", "tp", "dp", "ep", "cp", "virtual", "micro_batch", "zero", "recompute"),
    "sequence_parallel",
)


MODEL_ERROR = 0.11
"""Relative error of an iteration's time: the mean of a published table whose rows a fit
to all other tables has not seen, in the median of seven tables
(``moetraffic reproduce iteration_times``).  Nearer times are not ranked."""


@dataclass(frozen=True, kw_only=True)
class Search:
    """All configurations that were looked at."""

    estimate: Estimate  # arrays [n], of those that can exist
    order: npt.NDArray[np.int64]  # those that fit, the fastest first
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
    micro_batches: Sequence[int] = (1, 2, 4, 8, 16),
    virtual: Sequence[int] = (1, 2, 3, 4),
    zero: Sequence[int] = (0, 1, 3),
    recompute: Sequence[str] = ("none", "selective", "full"),
    sequence_parallel: Sequence[bool] = (False, True),
    context: Sequence[int] = (1,),
    gradient_bytes: float = 2,
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
    micro_batches, virtual, zero, recompute, sequence_parallel, context
        What is tried; sizes of tp, pp, dp and ep are all factorizations.
    gradient_bytes, same
        Fields that all configurations share, as of :class:`Configuration`.

    Raises
    ------
    LayoutError
        If there are no GPUs, or none of the configurations can exist.
    """
    if gpus < 1 or global_batch < 1:
        raise LayoutError(
            f"a search has at least 1 GPU and a batch of 1, but {gpus} and "
            f"{global_batch}: raise them"
        )
    spread = [
        (p, t, gpus // (p * t * c), e, c)
        for p in divisors(gpus)
        if p <= model.layers
        for t in divisors(gpus // p)
        if model.heads % t == 0
        for c in context
        if gpus // (p * t) % c == 0
        for e in (divisors(gpus // (p * t * c)) if model.experts > 0 else [1])
        if e == 1 or model.experts % e == 0
    ]
    levels = [RECOMPUTE.index(name) for name in recompute]
    rest = product(virtual, micro_batches, zero, levels, map(float, sequence_parallel))
    grid = np.array(list(rest), np.float64)
    ranks = np.array(spread, np.float64).reshape(-1, 5)
    if not len(ranks):
        raise LayoutError(
            f"no tp, pp and dp make {gpus} GPUs for this model: change the GPUs"
        )
    left, right = np.repeat(ranks, len(grid), axis=0), np.tile(grid, (len(ranks), 1))
    every = np.concatenate([left, right], axis=1)
    # what makes no difference is looked at once
    column = dict(zip(COLUMNS, every.T, strict=True))
    twice = (column["tp"] == 1) & (column["sequence_parallel"] > 0)
    twice |= (column["pp"] == 1) & (column["virtual"] > 1)
    twice |= (column["dp"] * column["cp"] == 1) & (column["zero"] > 0)
    every = every[~twice]
    tried = len(every)

    def made(rows: npt.NDArray[np.float64]) -> Estimate:
        names = dict(zip(COLUMNS, rows.T, strict=True))
        config = Configuration(
            model=model,
            global_batch=global_batch,
            gradient_bytes=gradient_bytes,
            **same,
            **names,
        )
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
