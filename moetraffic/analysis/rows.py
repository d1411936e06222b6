"""Arrays of an exchange with one row per iteration, computed window by window.

A row depends on its own iteration alone, so rows do not depend on the length of the
windows, or on the number of threads or machines.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from moetraffic.arrays import Float64, Int64
from moetraffic.trace import Trace

from .exchange import Exchange, Window, read, windows
from .kernels import MATRIX_MEASURES, matrix_statistics
from .network import network_rows

Arrays = dict[str, npt.NDArray[Any]]
"""Arrays ``[n, ...]`` of some iterations, by name."""

Mapper = Callable[[Exchange, Sequence[range]], Iterator[Arrays]]
"""Function that yields the arrays of windows of an exchange, in order."""

SAMPLED_VALUES = 1 << 21
"""Maximum values of cells over all iterations that are kept of a matrix."""

MOST_CELLS = 4096


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Arrays of an exchange, first axis T iterations; None where unknown."""

    load: Int64 | None = None  # [T, E] token copies that each expert is given
    routed: Int64 | None = None  # [T, W] token copies that each rank routes
    demand_cells: Int64 | None = None  # [T, C] of rank x expert, all or a sample
    sent: Int64 | None = None  # [T, W] bytes to other ranks
    received: Int64 | None = None  # [T, W] bytes from other ranks
    pairs: Int64 | None = None  # [T, C] bytes between two ranks, all or a sample
    bottleneck: Int64 | None = None  # [T] most bytes sent or received by a rank
    tokens: Int64 | None = None  # [T] per rank; None: unknown, or no top-k
    row_bytes: int = 1  # bytes of a token copy; 1: the bytes follow no demand
    demand: Mapping[str, Float64] = field(default_factory=dict)  # measure to [T]
    wire: Mapping[str, Float64] = field(default_factory=dict)  # measure to [T]
    capacity: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    tiers: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)

    @property
    def balance(self) -> tuple[Int64 | None, str]:
        """Load and what it is of: of experts, or bytes received where it is unknown."""
        if self.load is not None:
            return self.load, "expert_load"
        return self.received, "received"

    def unchanging(self) -> set[str]:
        """Name the matrices that are the same in all iterations: demand, wire."""
        kept = {"demand": self.demand_cells, "wire": self.pairs}
        lines = {"demand": self.load, "wire": self.received}
        return {
            name
            for name, cells in kept.items()
            if cells is not None
            and len(cells) > 1
            and (cells == cells[0]).all()
            # of a sample of cells, also the sums of columns
            and (lines[name] == np.asarray(lines[name])[0]).all()
        }


def sampled_cells(cells: int, iterations: int) -> Int64:
    """Choose the matrix cells that are kept over time: all, or a random sample.

    It is drawn without replacement, the same for the same arguments.
    """
    fit = min(MOST_CELLS, max(64, SAMPLED_VALUES // max(1, iterations)))
    if cells <= fit:
        return np.arange(cells)
    drawn = np.random.default_rng(0).choice(cells, fit, replace=False)
    return np.sort(drawn).astype(np.int64)


def rows(
    trace: Trace,
    exchange: Exchange,
    *,
    mapper: Mapper | None = None,
    threads: int = 2,
    report: Callable[[], None] | None = None,
) -> Rows:
    """Compute the rows of all iterations of an exchange.

    Parameters
    ----------
    mapper
        Function that computes windows, such as on a cluster; None: threads here.
    report
        Called after each window.
    """
    mapper = mapper or in_threads(trace, threads)
    windowed: list[Arrays] = []
    for arrays in mapper(exchange, windows(exchange)):
        windowed.append(arrays)
        if report is not None:
            report()
    joined = {
        name: np.concatenate([arrays[name] for arrays in windowed])
        for name in windowed[0]
    }

    def named(prefix: str) -> Arrays:
        start = f"{prefix}."
        return {n[len(start) :]: a for n, a in joined.items() if n.startswith(start)}

    # bytes of a token copy: the same in all windows, or the bytes follow no demand
    unit = int(np.gcd.reduce(joined.get("row_bytes", np.ones(1, np.int64))))
    wire = {
        name: joined.get(name) for name in ("sent", "received", "pairs", "bottleneck")
    }
    return Rows(
        load=joined.get("load"),
        routed=joined.get("routed"),
        demand_cells=joined.get("demand_cells"),
        tokens=_tokens(trace, exchange, joined.get("routed")),
        row_bytes=unit,
        demand=named("demand"),
        wire=named("wire"),
        capacity=named("capacity"),
        tiers=named("tiers"),
        **wire,
    )


def window_arrays(exchange: Exchange, window: Window) -> Arrays:
    """Compute the arrays of the iterations of a window, by their names in a Rows."""
    arrays: Arrays = {f"capacity.{name}": a for name, a in window.capacity.items()}
    width, total = len(exchange.ranks), len(exchange.iterations)
    if window.demand is not None:
        measured = matrix_statistics(window.demand)
        cells = sampled_cells(width * exchange.experts, total)
        laid = window.demand.reshape(len(window.demand), -1)
        arrays["demand_cells"] = np.asarray(laid.take(cells, axis=1), np.int64)
        arrays["load"], arrays["routed"] = measured["received"], measured["sent"]
        arrays |= {f"demand.{name}": measured[name] for name in MATRIX_MEASURES}
    if window.wire is not None and width > 1:
        unit = window.row_bytes
        measured = matrix_statistics(window.wire, diagonal=False)
        cells = sampled_cells(width * (width - 1), total)
        # without the first cell, each run of W + 1 cells ends on the diagonal
        index = 1 + cells + cells // width
        laid = window.wire.reshape(len(window.wire), -1)
        arrays["pairs"] = np.asarray(laid.take(index, axis=1), np.int64) * unit
        for name in ("sent", "received", "bottleneck"):
            arrays[name] = measured[name] * unit
        arrays["row_bytes"] = np.full(len(laid), unit, np.int64)
        arrays |= {f"wire.{name}": measured[name] for name in MATRIX_MEASURES}
        tiers = network_rows(exchange, window.first, window.wire)
        arrays |= {f"tiers.{name}": array for name, array in tiers.items()}
    return arrays


def in_threads(trace: Trace, threads: int) -> Mapper:
    """Create a mapper that computes windows in threads, with few of them in memory."""

    def mapped(exchange: Exchange, parts: Sequence[range]) -> Iterator[Arrays]:
        def work(window: range) -> Arrays:
            return window_arrays(exchange, read(trace, exchange, window))

        if threads <= 1 or len(parts) <= 1:
            yield from map(work, parts)
            return
        with ThreadPoolExecutor(threads) as pool:
            waiting: deque[Future[Arrays]] = deque()
            for window in parts:
                waiting.append(pool.submit(work, window))
                if len(waiting) > threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()

    return mapped


def _tokens(trace: Trace, exchange: Exchange, routed: Int64 | None) -> Int64 | None:
    """Return the tokens of a rank in each iteration, mean over the ranks, ``[T]``."""
    if routed is not None:
        if not 1 <= trace.meta.k <= exchange.experts:
            return None
        # token counts of ranks differ slightly even with equal batches
        counted: Int64 = np.rint(routed.mean(axis=1) / trace.meta.k).astype(np.int64)
        return counted
    # an import states tokens; those of a capture without routing are unknown
    steps = trace.steps
    index = np.searchsorted(steps.iteration, exchange.iterations)
    experts = exchange.experts or trace.meta.experts
    if (
        trace.meta.origin != "imported"
        or index.max(initial=0) >= len(steps.iteration)
        or not np.array_equal(steps.iteration[index], exchange.iterations)
        or not 1 <= trace.meta.k <= experts
    ):
        return None
    tokens = steps.tokens[index][:, list(exchange.ranks)]
    if tokens.min() < 1:
        return None
    stated: Int64 = np.rint(tokens.mean(axis=1)).astype(np.int64)
    return stated
