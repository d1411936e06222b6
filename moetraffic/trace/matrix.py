"""Traffic matrices between ranks, from expert demand or from wire bytes, by phase."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from moetraffic.arrays import Int64
from moetraffic.errors import TraceError
from moetraffic.spelling import check_choice
from moetraffic.tables import Table

from .model import ALL_TO_ALL, PHASES, ROUTING, TRANSPOSED_PHASES, Source
from .placement import between_ranks
from .provenance import step_sources
from .reading import TraceContents
from .wire import in_bytes, wire_bytes

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
    trace: TraceContents,
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


def _wire(trace: TraceContents, occurrences: Int64, unit: str) -> Int64:
    values = wire_bytes(trace, occurrences, square=True)
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
    trace: TraceContents,
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


def _guessed(trace: TraceContents, occurrences: Int64) -> str:
    """Name the attributes by which calls were selected and that are inferred."""
    sites = [trace.sites[s] for s in np.unique(trace.occurrences.site[occurrences])]
    steps = step_sources(trace, trace.occurrences.iteration[occurrences])
    found = {
        "layer": any(s.layer_source == Source.INFERRED for s in sites),
        "phase": any(s.phase_source == Source.INFERRED for s in sites),
        "iteration": (steps == Source.INFERRED).any(),
    }
    names = [name for name, guessed in found.items() if guessed]
    return f", inferred {' and '.join(names)}" if names else ""


def _sum(name: str, plural: str, values: list[int]) -> str:
    if len(values) == 1:
        return f"{name} {values[0]}"
    return f"sum over {plural} {', '.join(map(str, values))}"
