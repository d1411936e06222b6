"""Traffic matrices between ranks, from expert demand or wire bytes, and placements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from moetraffic.arrays import Int64, Integer
from moetraffic.errors import TraceError
from moetraffic.spelling import check_choice
from moetraffic.tables import Table

from .model import (
    ALL_TO_ALL,
    MOST_BYTES,
    PHASES,
    PLACEMENT,
    ROUTING,
    TRANSPOSED_PHASES,
    Group,
    Source,
)

if TYPE_CHECKING:
    from .trace import Trace

SHOWN = 16
"""Maximum number of ranks shown in a notebook."""


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """Traffic matrix between ranks, with its unit and origin; converts to numpy."""

    values: Int64  # [W, W] or [R, R]; row sends, column receives
    unit: str  # "bytes" or "tokens"
    of: str  # "demand" or "wire"
    ranks: tuple[int, ...]  # world rank of each row
    label: str  # description of the underlying data and sums

    def __array__(
        self, dtype: npt.DTypeLike | None = None, copy: bool | None = None
    ) -> npt.NDArray[Any]:
        """Return the values as a numpy array, for ``numpy.asarray(matrix)``.

        Raises
        ------
        ValueError
            If ``copy`` is False, but another type is requested.
        """
        if copy is False and dtype not in (None, self.values.dtype):
            raise ValueError(f"a matrix of {self.values.dtype} as {dtype} is a copy")
        return np.array(self.values, dtype, copy=bool(copy) or None)

    def _repr_html_(self) -> str:
        """Format the matrix as an HTML table for notebooks, of at most 16 ranks."""
        shown = self.values[:SHOWN, :SHOWN]
        header = ["from, to", *map(str, self.ranks[:SHOWN])]
        rows = [
            [str(rank), *row]
            for rank, row in zip(self.ranks, shown.tolist(), strict=False)
        ]
        more = len(self.ranks) > SHOWN
        notes = [f"{SHOWN} of {len(self.ranks)} ranks are shown"] if more else []
        return Table(title=self.label, columns=header, rows=rows, notes=notes).to_html()


def exchange_matrix(
    trace: Trace,
    iteration: int,
    layer: int,
    phase: str,
    *,
    micro_batch: int | None,
    group: int | None,
    space: str,
    unit: str,
    of: str,
) -> Matrix:
    """Compute the traffic matrix of one expert exchange; see :meth:`Trace.matrix`."""
    for value, choices, name in (
        (phase, PHASES, "phase"),
        (space, ("group", "world"), "space"),
        (unit, ("bytes", "tokens"), "unit"),
        (of, ("demand", "wire"), "of"),
    ):
        check_choice(name, value, choices, TraceError)

    for number, name in ((iteration, "iteration"), (layer, "layer")):
        if not isinstance(number, int | np.integer):
            raise TraceError(f"{name} is a number, not {number!r:.60}: give an int")

    def find(operation: str, phase: str | None, direction: str | None) -> Int64:
        return trace.find(
            operation=operation,
            phase=phase,
            layer=layer,
            direction=direction,
            slot=micro_batch,
            group=group,
            iterations=range(iteration, iteration + 1),
            kind=None,
        )

    step = trace.steps.label(iteration)
    if step.endswith("(evaluation)") and phase.endswith("_grad"):
        raise TraceError(
            f"phases of the backward pass are of training iterations, but {step} has "
            "no backward pass: choose dispatch or combine, or another iteration"
        )
    sent = find(ALL_TO_ALL, phase, None)
    found = sent if of == "wire" else find(ROUTING, None, "forward")
    sites = trace.occurrences.site
    groups = sorted({trace.sites[s].group for s in sites[found]})
    if not groups:
        span = [int(i) for i in (*trace.iterations[:1], *trace.iterations[-1:])]
        raise TraceError(
            f"the trace has no {of} of {step}, layer {layer}, {phase}: "
            f"its MoE layers are {list(trace.layers)} and its training iterations "
            f"{' to '.join(map(str, span)) or 'none'}"
        )
    if space == "group" and len(groups) > 1:
        raise TraceError(
            f"a matrix in group space covers one group, but layer {layer} has groups "
            f"{groups}: choose one with group=, or use space='world'"
        )
    width = trace.meta.world if space == "world" else trace.size(int(found[0]))
    total = np.zeros((width, width), np.int64)
    for number in groups:
        mine = np.array([o for o in found if trace.sites[sites[o]].group == number])
        if len(trace.complete(mine)) < len(mine):
            absent = np.flatnonzero(~trace.present(mine).all(axis=0)).tolist()
            raise TraceError(
                "a matrix needs the record of every member, but iteration "
                f"{iteration} lacks that of group ranks {absent}: "
                "choose an earlier iteration"
            )
        values = (
            _wire(trace, mine, unit)
            if of == "wire"
            else _demand(trace, mine, sent, number, layer, phase, unit)
        )
        if space == "group":
            total += values
        else:
            ranks = trace.groups[number].ranks
            total[np.ix_(ranks, ranks)] += values
    slots = sorted({trace.sites[s].slot for s in sites[found]})
    return Matrix(
        values=total,
        unit=unit,
        of=of,
        ranks=tuple(range(width))
        if space == "world"
        else trace.groups[groups[0]].ranks,
        label=(
            f"{of} of {phase}, layer {layer}, {step}, "
            + _sum("micro-batch", "micro-batches", slots)
            + (", " + _sum("group", "groups", groups) if space == "world" else "")
            + f", {unit}"
            + _guessed(trace, np.union1d(found, sent))
        ),
    )


def _wire(trace: Trace, occurrences: Int64, unit: str) -> Int64:
    values = trace.wire(occurrences)
    if unit == "tokens":
        sites = trace.occurrences.site[occurrences]
        row = np.array([trace.sites[s].row_bytes for s in sites], np.int64)
        if (row <= 0).any():
            raise TraceError(
                "wire in tokens needs the bytes of a row, which are unknown here: use "
                "unit='bytes'"
            )
        values = values // row[:, None, None]
    return np.asarray(values.sum(axis=0), np.int64)


def _demand(
    trace: Trace,
    routed: Int64,
    sent: Int64,
    group: int,
    layer: int,
    phase: str,
    unit: str,
) -> Int64:
    when = trace.occurrences.iteration[routed]
    tokens = between_ranks(
        trace, layer, group, when, trace.demand(routed).astype(np.int64)
    ).sum(axis=0)
    if phase in TRANSPOSED_PHASES:
        tokens = tokens.T
    if unit == "tokens":
        return np.asarray(tokens, np.int64)
    rows = {
        trace.sites[s].row_bytes
        for s in trace.occurrences.site[sent]
        if trace.sites[s].group == group
    }
    if len(rows) != 1 or 0 in rows:
        raise TraceError(
            "demand in bytes needs one size of a row, but the all-to-alls of "
            f"{phase}, layer {layer}, have {sorted(rows)}: use unit='tokens'"
        )
    return in_bytes(tokens, rows.pop())


def _guessed(trace: Trace, occurrences: Int64) -> str:
    """Name the attributes by which calls were selected and that are inferred."""
    sites = [trace.sites[s] for s in np.unique(trace.occurrences.site[occurrences])]
    steps = trace.steps.sources(trace.occurrences.iteration[occurrences])
    found = {
        "layer and phase": any(s.source == Source.INFERRED for s in sites),
        "iteration": (steps == Source.INFERRED).any(),
    }
    names = [name for name, guessed in found.items() if guessed]
    return f", inferred {' and '.join(names)}" if names else ""


def _sum(name: str, plural: str, values: list[int]) -> str:
    if len(values) == 1:
        return f"{name} {values[0]}"
    return f"sum over {plural} {', '.join(map(str, values))}"


# ---- placements of experts -----------------------------------------------------------


def contiguous_placement(
    groups: Sequence[Group], layers: Sequence[int], experts: int
) -> npt.NDArray[Any]:
    """Place consecutive blocks of experts on the ranks of each group, in order.

    The rows are of type PLACEMENT, valid from iteration 0: group rank ``floor(e W/E)``
    holds expert e.
    """
    rows = [
        (number, layer, expert, 0, group.ranks[expert * len(group.ranks) // experts], 0)
        for number, group in enumerate(groups)
        for layer in layers
        for expert in range(experts)
    ]
    return np.array(rows, PLACEMENT)


def holder(trace: Trace, layer: int, group: int, iteration: int) -> Int64:
    """Return the group rank that holds each expert in an iteration, ``[E]`` int64."""
    return _holder(_placed(trace, layer, group), trace.groups[group], layer, iteration)


def between_ranks(
    trace: Trace,
    layer: int,
    group: int,
    iterations: Int64,
    by_expert: npt.NDArray[Any],
) -> npt.NDArray[Any]:
    """Sum traffic to experts over the experts that each rank holds.

    ``iterations`` ``[n]`` are those of each matrix, as the placement may change during
    the run; ``by_expert`` ``[n, W, E]`` are token copies, or expected ones in float64.
    The result is ``[n, W, W]``: the input itself where rank w holds expert w alone,
    else int64, or float64.
    """
    rows = _placed(trace, layer, group)
    return summed_by_rank(rows, trace.groups[group], layer, iterations, by_expert)


def summed_by_rank(
    rows: npt.NDArray[Any],
    group: Group,
    layer: int,
    iterations: Int64,
    by_expert: npt.NDArray[Any],
) -> npt.NDArray[Any]:
    """Sum as :func:`between_ranks`, by the placement ``rows`` of a group and layer."""
    count, width, experts = by_expert.shape
    kind = np.result_type(by_expert.dtype, np.int64)
    version = np.searchsorted(np.unique(rows["valid_from"]), iterations, side="right")
    parts = []
    for number in np.unique(version):
        these = np.flatnonzero(version == number)
        ranks_of = _holder(rows, group, layer, int(iterations[these[0]]))
        if len(ranks_of) != experts:
            raise TraceError(
                f"the placement of layer {layer} names {len(ranks_of)} experts, but "
                f"its routing has {experts}: the file is inconsistent"
            )
        mine = by_expert if len(these) == count else by_expert[these]
        if np.array_equal(ranks_of, np.arange(width)):
            parts.append((these, mine))
            continue
        order = np.argsort(ranks_of, kind="stable")
        ranks, first = np.unique(ranks_of[order], return_index=True)
        if not np.array_equal(order, np.arange(experts)):
            mine = mine[:, :, order]
        held = np.add.reduceat(mine, first, axis=2, dtype=kind)
        if len(ranks) < width:
            every = np.zeros((len(these), width, width), kind)
            every[:, :, ranks] = held
            held = every
        parts.append((these, held))
    if len(parts) == 1:
        return parts[0][1]
    out = np.zeros((count, width, width), kind)
    for these, held in parts:
        out[these] = held
    return out


def _placed(trace: Trace, layer: int, group: int) -> npt.NDArray[Any]:
    rows: npt.NDArray[Any] = trace.placements
    of = (rows["layer"] == layer) & (rows["group"] == group)
    return np.asarray(rows[of])


def _holder(rows: npt.NDArray[Any], group: Group, layer: int, iteration: int) -> Int64:
    rows = rows[rows["valid_from"] <= iteration]
    if len(rows):
        rows = rows[rows["valid_from"] == rows["valid_from"].max()]
    if not len(rows) or (rows["replica"] > 0).any():
        raise TraceError(
            "a matrix between ranks needs exactly one rank per expert, but the "
            f"placement of layer {layer} has {'several' if len(rows) else 'none'}: "
            "Trace.demand() has the demand by expert"
        )
    rows = np.sort(rows, order="expert")
    if not np.array_equal(rows["expert"], np.arange(len(rows))):
        raise TraceError(
            f"experts are numbered from 0 without gaps, but the placement of layer "
            f"{layer} has gaps: Trace.demand() has the demand by expert"
        )
    member = {rank: at for at, rank in enumerate(group.ranks)}
    return np.array([member[int(rank)] for rank in rows["rank"]], np.int64)


def in_bytes(tokens: Integer, row_bytes: int) -> Int64:
    """Multiply token copies by the bytes of a row, and check the result's range."""
    if tokens.size and int(tokens.max()) * row_bytes > MOST_BYTES:
        raise TraceError(
            f"a call sends at most {MOST_BYTES} bytes to a rank, but {tokens.max()} "
            f"rows of {row_bytes} bytes are more: the file is inconsistent"
        )
    return np.asarray(tokens.astype(np.int64, copy=False) * row_bytes, np.int64)
