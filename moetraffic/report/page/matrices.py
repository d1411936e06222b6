"""Sample the traffic matrices of the HTML report while reading a trace, and pack them.

While an analysis reads a trace, :class:`Kept` keeps the loads of all iterations and the
matrices of some.  :func:`blocks` packs these: a matrix that equals a transform of
another block (the transposed dispatch, or the demand summed over each rank's experts)
is stored as a reference, after the values were compared.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from moetraffic.analysis.exchange import Rows, Source, Window, read, sources, windows
from moetraffic.arrays import Int64
from moetraffic.errors import TraceError
from moetraffic.trace import PHASES, Trace
from moetraffic.units import rank_span

Key = tuple[int, int]  # layer, group

MOST_BYTES = 8_000_000
"""Limit of the packed size of all matrices in a page."""

CELL_BYTES = 2.0
"""Assumed packed size of a cell; if it is larger, iterations are omitted afterwards."""

MOST_KEPT = 1000
"""Maximum number of iterations whose matrices are kept."""

LARGEST = (128, 256)
"""Maximum drawn rows and columns; in larger matrices, neighboring cells are summed."""


@dataclass(frozen=True, kw_only=True)
class Matrices:
    """Heatmap of traffic matrices with an iteration slider."""

    source: str
    blocks: tuple[dict[str, Any], ...]  # in the format of the page's script
    key: str = "matrices"
    title: str = "Traffic matrices"


@dataclass
class Seen:
    """Matrices and loads that were kept of one expert exchange."""

    source: Source
    chosen: Int64  # [n] indices into source.iterations
    demand: dict[int, tuple[Any, int]] = field(default_factory=dict)  # cells, unit
    wire: dict[int, tuple[Any, int]] = field(default_factory=dict)
    loads: dict[int, tuple[str, npt.NDArray[Any]]] = field(default_factory=dict)

    def load(self) -> tuple[str, npt.NDArray[Any]] | None:
        """Return "expert" or "rank", and its loads ``[T, E]`` in all iterations."""
        every = [self.loads[at] for at in sorted(self.loads)]
        whole = [values for _, values in every]
        return (every[0][0], np.concatenate(whole)) if every else None

    @property
    def iterations(self) -> Int64:
        """Iterations whose matrices were kept."""
        return np.asarray(self.source.iterations[self.chosen], np.int64)

    def demands(self) -> Int64 | None:
        """Return token copies ``[n, W, E]`` of the kept iterations."""
        return self._stacked(self.demand)

    def wires(self) -> Int64 | None:
        """Return wire bytes ``[n, W, W]`` of the kept iterations."""
        return self._stacked(self.wire)

    def _stacked(self, cells: dict[int, tuple[Any, int]]) -> Int64 | None:
        if not cells:
            return None
        every = [cells[at] for at in self.chosen.tolist()]
        return np.stack([values.astype(np.int64) * unit for values, unit in every])


class Kept:
    """Collector of loads and sampled matrices from the windows that an analysis reads.

    Parameters
    ----------
    every
        Exchanges that the analysis will read.
    most_bytes
        Limit of the packed size of all matrices in a page.
    """

    def __init__(
        self, every: Sequence[Source], *, most_bytes: int = MOST_BYTES
    ) -> None:
        self.most_bytes = most_bytes
        self.seen: dict[Key, Seen] = {}
        most_cells = int(most_bytes / CELL_BYTES)
        for source in every:
            width = len(source.ranks)
            cells = min(width, LARGEST[0]) * min(max(source.experts, width), LARGEST[1])
            fit = max(3, min(MOST_KEPT, most_cells // max(1, cells * len(every))))
            total = len(source.iterations)
            step = max(1, -(-total // fit))
            chosen = np.unique(np.append(np.arange(0, total, step), total - 1))
            self.seen[source.layer, source.group] = Seen(
                source=source, chosen=chosen.astype(np.int64)
            )

    def __call__(self, source: Source, window: Window, rows: Rows) -> None:
        """Keep loads and sampled matrices of a window; thread-safe."""
        seen = self.seen[source.layer, source.group]
        for name, what in (("demand.load", "expert"), ("wire.received", "rank")):
            if name in rows:
                seen.loads[window.first] = what, rows[name]
                break
        length = next(iter(rows.values())).shape[0] if rows else 0
        inside = seen.chosen[
            (seen.chosen >= window.first) & (seen.chosen < window.first + length)
        ]
        for at in inside.tolist():
            row = at - window.first
            if window.demand is not None:
                seen.demand[at] = window.demand[row].copy(), 1
            if window.wire is not None:
                seen.wire[at] = window.wire[row].copy(), window.wire_unit


def matrices(trace: Trace, kept: Kept, *, phase: str) -> Matrices | None:
    """Build the heatmap of the kept matrices of all phases; None without matrices.

    ``phase`` is the phase whose wire bytes were read.
    """
    told = _packed(trace, kept, phase)
    if not told:
        return None
    size = sum(len(b.get("data", "")) for b in told)
    if size > kept.most_bytes:
        step = -(-size // kept.most_bytes)
        for seen in kept.seen.values():
            seen.chosen = seen.chosen[::step]
        told = _packed(trace, kept, phase)
    shown = sorted({b["count"] for b in told})
    total = max(len(s.source.iterations) for s in kept.seen.values())
    how = (
        f"All {total} iterations"
        if shown[0] == total
        else f"{shown[0]} of {total} iterations, at equal distances, so that the page "
        "stays small,"
    )
    pooled = any(
        len(b["rows"]) < len(s.source.ranks)
        for b in told
        for s in kept.seen.values()
        if s.source.layer == b["layer"]
    )
    return Matrices(
        source=f"{how} of every expert exchange. Demand: token copies that each rank's "
        "router chose, by expert, those dropped later included. Wire: bytes of the "
        "phase's all-to-alls, row sends, column receives, the part that a rank keeps "
        "included. Micro-batches of a step are summed."
        + (" Neighboring rows and columns are summed, to be drawn." if pooled else ""),
        blocks=tuple(told),
    )


def _packed(trace: Trace, kept: Kept, phase: str) -> list[dict[str, Any]]:
    told: list[dict[str, Any]] = []
    for seen in kept.seen.values():
        told += blocks(trace, seen, phase, first=len(told))
    return told


def blocks(
    trace: Trace, seen: Seen, phase: str, *, first: int = 0
) -> list[dict[str, Any]]:
    """Pack the matrices of one exchange; derivable ones become references.

    ``phase`` is the phase whose wire bytes were read with the exchange; ``first`` is
    the number of its first block in the page.
    """
    source = seen.source
    found: list[dict[str, Any]] = []
    plain: list[Int64] = []  # values of the blocks, divided by their factor

    def add(of: str, name: str, unit: str, values: Int64, held: Int64 | None) -> None:
        square = values.shape[2] == values.shape[1]
        columns = source.ranks if of == "wire" else range(values.shape[2])
        values, rows, across = _pooled(values, source.ranks, columns)
        divisor = int(np.gcd.reduce(values, axis=None)) or 1
        whole = values // divisor
        told: dict[str, Any] = {
            "id": first + len(found),
            "layer": source.layer,
            "group": rank_span(source.ranks),
            "of": of,
            "phase": name,
            "unit": unit,
            "rows": rows,
            "columns": across,
            "count": len(values),
            "iterations": seen.iterations.tolist(),
            "factor": divisor,
        }
        for number, other in enumerate(plain):
            for how, made in _derived(other, found[number], held, square):
                scaled = made * found[number]["factor"]
                if made.shape == values.shape and (ratio := _ratio(scaled, values)):
                    told |= {
                        **{"base": first + number, **how},
                        "factor": found[number]["factor"] * ratio,
                    }
                    found.append(told)
                    plain.append(made)
                    return
        size = np.min_scalar_type(whole.max(initial=0)).itemsize
        kind = f"u{size}" if size <= 4 else "f8"
        data = np.ascontiguousarray(whole, np.dtype(kind).newbyteorder("<"))
        told |= {
            "dtype": kind,
            "data": base64.b64encode(zlib.compress(data.tobytes(), 9)).decode(),
        }
        found.append(told)
        plain.append(whole)

    demand = seen.demands()
    held = None
    if demand is not None:
        held = _holders(trace, seen)
        add("demand", "", "token copies", demand, None)
    for name in PHASES:
        values = seen.wires() if name == phase else _other_phase(trace, seen, name)
        if values is not None:
            add("wire", name, "bytes", values, held)
    return found


def _derived(
    other: Int64, told: dict[str, Any], held: Int64 | None, square: bool
) -> list[tuple[dict[str, Any], Int64]]:
    """List the matrices that can be derived from a block, with the transform."""
    if told["of"] == "wire":
        return [({}, other), ({"transpose": True}, other.transpose(0, 2, 1))]
    if held is None or not square or len(held) != other.shape[2]:
        return []
    ranks = other.shape[1]
    made = np.zeros((*other.shape[:2], ranks), np.int64)
    for expert, rank in enumerate(held.tolist()):
        made[:, :, rank] += other[:, :, expert]
    how: dict[str, Any] = {"held": held.tolist()}
    return [(how, made), ({**how, "transpose": True}, made.transpose(0, 2, 1))]


def _ratio(made: Int64, values: Int64) -> int:
    """Return the integer factor from ``made`` to ``values``; 0 if there is none."""
    total = int(made.sum())
    if not total or int(values.sum()) % total:
        return 0
    ratio = int(values.sum()) // total
    return ratio if np.array_equal(made * ratio, values) else 0


def _holders(trace: Trace, seen: Seen) -> Int64 | None:
    """Return the rank of each expert, if equal in all kept iterations."""
    source = seen.source
    try:
        found = [
            trace.holder(source.layer, source.group, int(i))
            for i in (seen.iterations[0], seen.iterations[-1])
        ]
    except TraceError:  # replicas, or an unknown placement: no reference
        return None
    return found[0] if np.array_equal(found[0], found[1]) else None


def _other_phase(trace: Trace, seen: Seen, phase: str) -> Int64 | None:
    """Read the bytes of another phase in the kept iterations; None if unknown."""
    source = seen.source
    for other in sources(trace, [], layers=[source.layer], phase=phase, of=("wire",)):
        if other.group != source.group or not len(other.sent):
            continue
        if not np.isin(seen.iterations, other.iterations).all():
            return None
        at = np.searchsorted(other.iterations, seen.iterations)
        parts = []
        for part in windows(other):
            inside = at[(at >= part.start) & (at < part.stop)]
            if len(inside):
                window = read(trace, other, part)
                assert window.wire is not None
                rows = window.wire[inside - part.start].astype(np.int64)
                parts.append(rows * window.wire_unit)
        return np.concatenate(parts)
    return None


def _pooled(
    values: Int64, rows: Sequence[int], columns: Sequence[int]
) -> tuple[Int64, list[str], list[str]]:
    """Sum matrices to at most :data:`LARGEST` cells per side, and name the cells."""
    most = LARGEST if values.shape[1] != values.shape[2] else (LARGEST[0],) * 2
    names = []
    for axis, (limit, of) in enumerate(zip(most, (rows, columns), strict=True), 1):
        each = -(-len(of) // limit)
        starts = np.arange(0, len(of), each)
        if each > 1:
            values = np.add.reduceat(values, starts, axis=axis)
        names.append(
            [
                str(of[s])
                if each == 1
                else f"{of[s]} to {of[min(s + each, len(of)) - 1]}"
                for s in starts.tolist()
            ]
        )
    return values, names[0], names[1]
