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
        """Return the values as a numpy array, for ``numpy.asarray(matrix)``."""
        return np.array(self.values, dtype, copy=copy)

    def _repr_html_(self) -> str:
        """Format the first 16 ranks as an HTML table for notebooks."""
        ranks, cells = self.ranks[:16], self.values[:16, :16].tolist()
        rows = [[str(r), *row] for r, row in zip(ranks, cells, strict=True)]
        few = len(ranks) < len(self.ranks)
        notes = [f"{len(ranks)} of {len(self.ranks)} ranks are shown"] if few else []
        columns = ["from, to", *map(str, ranks)]
        return Table(
            title=self.label, columns=columns, rows=rows, notes=notes
        ).to_html()


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
    check_choice("phase", phase, PHASES, TraceError)
    check_choice("space", space, ("group", "world"), TraceError)
    check_choice("unit", unit, ("bytes", "tokens"), TraceError)
    check_choice("of", of, ("demand", "wire"), TraceError)
    for number, name in ((iteration, "iteration"), (layer, "layer")):
        if not isinstance(number, int | np.integer):
            raise TraceError(f"{name} is a number, not {number!r:.60}: give an int")
    step = trace.steps.label(iteration)
    if step.endswith("(evaluation)") and phase.endswith("_grad"):
        raise TraceError(
            f"phases of the backward pass are of training iterations, but {step} has "
            "no backward pass: choose dispatch or combine, or another iteration"
        )
    calls = trace.find(
        layer=layer,
        slot=micro_batch,
        group=group,
        iterations=range(iteration, iteration + 1),
        kind=None,
    )
    sites = [trace.sites[n] for n in trace.occurrences.site[calls]]
    sent = calls[[s.operation == ALL_TO_ALL and s.phase == phase for s in sites]]
    routed = [s.operation == ROUTING and s.direction == "forward" for s in sites]
    calls = sent if of == "wire" else calls[routed]
    of_group: dict[int, list[int]] = {}
    for call in calls.tolist():
        own = trace.sites[trace.occurrences.site[call]].group
        of_group.setdefault(own, []).append(call)
    groups = sorted(of_group)
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
    world = tuple(range(trace.meta.world))
    ranks = world if space == "world" else trace.groups[groups[0]].ranks
    total = np.zeros((len(ranks), len(ranks)), np.int64)
    for number in groups:
        own_calls = np.array(of_group[number])
        absent = np.flatnonzero(~trace.present(own_calls).all(axis=0)).tolist()
        if absent:
            raise TraceError(
                "a matrix needs the record of every member, but iteration "
                f"{iteration} lacks that of group ranks {absent}: "
                "choose an earlier iteration"
            )
        if of == "wire":
            values = _wire(trace, own_calls, unit)
        else:
            values = _demand(trace, own_calls, sent, number, layer, phase, unit)
        if space == "world":
            members = trace.groups[number].ranks
            total[np.ix_(members, members)] += values
        else:
            total += values
    slots = sorted({trace.sites[s].slot for s in trace.occurrences.site[calls]})
    parts = [f"{of} of {phase}", f"layer {layer}", step, _numbers("micro-batch", slots)]
    parts += [_numbers("group", groups)] * (space == "world")
    parts += [unit, *_inferred(trace, np.union1d(calls, sent))]
    return Matrix(values=total, unit=unit, of=of, ranks=ranks, label=", ".join(parts))


def _wire(trace: Trace, calls: Int64, unit: str) -> Int64:
    values = trace.wire(calls)
    if unit == "tokens":
        rows = [trace.sites[s].row_bytes for s in trace.occurrences.site[calls]]
        if min(rows) <= 0:
            raise TraceError(
                "wire in tokens needs the bytes of a row, which are unknown here: use "
                "unit='bytes'"
            )
        values = values // np.array(rows)[:, None, None]
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
    tokens = between_ranks(trace, layer, group, when, trace.demand(routed)).sum(axis=0)
    tokens = tokens.T if phase in TRANSPOSED_PHASES else tokens
    if unit == "tokens":
        return np.asarray(tokens, np.int64)
    sites = [trace.sites[s] for s in trace.occurrences.site[sent]]
    rows = {s.row_bytes for s in sites if s.group == group}
    if len(rows) != 1 or 0 in rows:
        raise TraceError(
            "demand in bytes needs one size of a row, but the all-to-alls of "
            f"{phase}, layer {layer}, have {sorted(rows)}: use unit='tokens'"
        )
    return in_bytes(tokens, rows.pop())


def _inferred(trace: Trace, calls: Int64) -> list[str]:
    """Name the attributes by which calls were selected and that are inferred."""
    sites = [trace.sites[s] for s in np.unique(trace.occurrences.site[calls])]
    steps = trace.steps.sources(trace.occurrences.iteration[calls])
    names = ["layer and phase"] * any(s.source == Source.INFERRED for s in sites)
    names += ["iteration"] * bool((steps == Source.INFERRED).any())
    return [f"inferred {' and '.join(names)}"] * bool(names)


def _numbers(name: str, values: list[int]) -> str:
    if len(values) == 1:
        return f"{name} {values[0]}"
    plural = "es" if name.endswith("h") else "s"
    return f"sum over {name}{plural} {', '.join(map(str, values))}"


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
    rows = trace.placements
    rows = rows[(rows["layer"] == layer) & (rows["group"] == group)]
    return _holder(rows, trace.groups[group], layer, iteration)


def _holder(rows: npt.NDArray[Any], group: Group, layer: int, iteration: int) -> Int64:
    rows = rows[rows["valid_from"] <= iteration]
    rows = np.sort(rows[rows["valid_from"] == rows["valid_from"].max(initial=0)])
    if not len(rows) or (rows["replica"] > 0).any():
        raise TraceError(
            "a matrix between ranks needs exactly one rank per expert, but the "
            f"placement of layer {layer} has {'several' if len(rows) else 'none'}: "
            "Trace.demand() has the demand by expert"
        )
    member = {rank: number for number, rank in enumerate(group.ranks)}
    return np.array([member[rank] for rank in rows["rank"].tolist()], np.int64)


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
    The result is ``[n, W, W]`` int64, or float64.
    """
    rows = trace.placements
    rows = rows[(rows["layer"] == layer) & (rows["group"] == group)]
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
    out = np.zeros((count, width, width), np.result_type(by_expert, np.int64))
    version = np.searchsorted(np.unique(rows["valid_from"]), iterations, side="right")
    for number in np.unique(version):
        these = np.flatnonzero(version == number)
        rank_of = _holder(rows, group, layer, int(iterations[these[0]]))
        if len(rank_of) != experts:
            raise TraceError(
                f"the placement of layer {layer} names {len(rank_of)} experts, but "
                f"its routing has {experts}: the file is inconsistent"
            )
        order = np.argsort(rank_of, kind="stable")
        ranks, first = np.unique(rank_of[order], return_index=True)
        copies = by_expert if len(these) == count else by_expert[these]
        if (np.diff(rank_of) < 0).any():
            copies = copies[:, :, order]
        held = np.add.reduceat(copies, first, axis=2, dtype=out.dtype)
        out[these[:, None], :, ranks] = held.transpose(0, 2, 1)
    return out


def in_bytes(tokens: Integer, row_bytes: int) -> Int64:
    """Multiply token copies by the bytes of a row, and check the result's range."""
    if tokens.size and int(tokens.max()) * row_bytes > MOST_BYTES:
        raise TraceError(
            f"a call sends at most {MOST_BYTES} bytes to a rank, but {tokens.max()} "
            f"rows of {row_bytes} bytes are more: the file is inconsistent"
        )
    return np.asarray(tokens.astype(np.int64, copy=False) * row_bytes, np.int64)
