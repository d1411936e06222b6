"""What a run's counts amount to: skew, speed, differences, in a few numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from moetraffic.errors import LayoutError

from .generator import Demand
from .scenario import Scenario

Float64 = npt.NDArray[np.float64]
Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]

HOT = 8
"""One in so many experts is hot, at least one."""

HORIZON = 10
"""Iterations after which the hot experts are looked at again."""


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Means over iterations and exchanges; ranges over exchanges."""

    max_over_mean: float  # load of the hottest expert
    max_over_mean_layers: tuple[float, float]  # least and most of an exchange
    entropy: float  # of the load, over its largest
    change: float  # total variation of the load from one iteration to the next
    hot_kept: float  # share of the hot experts that are hot HORIZON later
    rank_over_mean: float  # copies that the busiest rank receives
    row_over_mean: float  # a rank's copies for its favorite expert
    dropped: float  # share of the copies over capacity


@dataclass(kw_only=True, eq=False)
class Watched:
    """A demand that notes the loads that pass; a Demand itself."""

    demand: Demand
    _loads: list[Int64] = field(default_factory=list)
    _rows: list[Float64] = field(default_factory=list)
    _ranks: list[Float64] = field(default_factory=list)
    _dropped: int = 0
    _copies: int = 0

    @property
    def scenario(self) -> Scenario:
        """Scenario of the sample: ranks, experts, tokens."""
        return self.demand.scenario

    @property
    def iterations(self) -> int:
        """How many there are."""
        return self.demand.iterations

    def blocks(self, rows: int = 0) -> Iterator[tuple[int, Int32]]:
        """The demand's blocks, as they are."""
        for first, counts in self.demand.blocks(rows):
            self.take(counts)
            yield first, counts

    def take(self, counts: Int32) -> None:
        """Note the loads of ``[b, X, R, E]`` counts."""
        scene = self.scenario
        load = counts.sum(axis=2, dtype=np.int64)
        self._loads.append(load)
        self._rows.append(counts.max(axis=3).mean(axis=2, dtype=np.float64))
        kept = counts
        if scene.capacity:
            kept = np.minimum(counts, scene.capacity)
            self._dropped += int(load.sum() - kept.sum(dtype=np.int64))
        self._copies += int(load.sum())
        grouped = kept.reshape(
            *kept.shape[:2], -1, scene.ep, scene.ep, scene.experts // scene.ep
        ).sum(axis=(3, 5), dtype=np.int64)  # [b, X, groups, W]
        received = grouped.reshape(*grouped.shape[:2], -1)
        self._ranks.append(
            received.max(axis=2) / np.maximum(received.mean(axis=2), 1e-12)
        )

    def summary(self) -> Summary:
        """Of all that passed.

        Raises
        ------
        LayoutError
            If nothing did.
        """
        if not self._loads:
            raise LayoutError(
                "a summary is that of some iterations, but none was drawn: raise "
                "--iterations"
            )
        load = np.concatenate(self._loads).astype(np.float64)  # [n, X, E]
        share = load / np.maximum(load.sum(axis=2, keepdims=True), 1)
        experts = share.shape[2]
        top = share.max(axis=2) * experts
        logs = np.log(np.maximum(share, 1e-300))
        entropy = -(share * logs).sum(axis=2) / np.log(max(experts, 2))
        change = np.abs(np.diff(share, axis=0)).sum(axis=2) / 2
        hot = max(1, experts // HOT)
        order = np.argsort(-share, axis=2, kind="stable")[..., :hot]
        is_hot = np.zeros(share.shape, bool)
        np.put_along_axis(is_hot, order, True, axis=2)
        lag = min(HORIZON, len(share) - 1)
        again = (is_hot[lag:] & is_hot[: len(share) - lag]).sum(axis=2) / hot
        rows = np.concatenate(self._rows)
        a_row = self.scenario.copies / experts
        by_layer = top.mean(axis=0)
        return Summary(
            max_over_mean=float(top.mean()),
            max_over_mean_layers=(float(by_layer.min()), float(by_layer.max())),
            entropy=float(entropy.mean()),
            change=float(change.mean()) if len(change) else float("nan"),
            hot_kept=float(again.mean()) if lag else float("nan"),
            rank_over_mean=float(np.concatenate(self._ranks).mean()),
            row_over_mean=float(rows.mean() / max(a_row, 1e-12)),
            dropped=self._dropped / max(self._copies, 1),
        )
