"""Scenario of a run: ranks, experts, tokens, capacity, bytes.

Taken from a trace, and scaled: more ranks are more rows like the captured ones, each
with as many tokens; capacity stays the same multiple of a balanced expert's share.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np

from moetraffic.analysis.exchange import training_steps
from moetraffic.arrays import Int32
from moetraffic.errors import AnalysisError, LayoutError
from moetraffic.trace import PHASES, Trace
from moetraffic.trace.iterations import regular_stretch
from moetraffic.trace.panel import take
from moetraffic.trace.what_if.relocate import routed_layers

SHORTEST = 30
"""Fewest iterations of a run that is fitted or copied."""

MOST = {"iterations": 10_000_000, "ranks": 1 << 14, "experts": 1 << 12}

MOST_CELLS = 1 << 28
"""Cells of an iteration's demand: a gigabyte."""


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """One layer's exchange of one micro-batch."""

    layer: int  # global layer
    slot: int = 0  # micro-batch of a step
    row_bytes: int  # bytes of a token copy on the wire
    dtype: str = ""  # element type on the wire
    phases: tuple[str, ...] = PHASES  # the all-to-alls that there are


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """Properties of a run except its token counts and times."""

    exchanges: tuple[Exchange, ...]  # X, by slot, then layer
    ranks: int  # R
    experts: int  # E
    k: int  # experts of a token
    tokens: int  # of a rank in one exchange: its row sums to k times this
    capacity: int = 0  # copies that a rank keeps for an expert; 0: all
    padded: int = 0  # rows that a rank sends each expert whatever is routed; 0: kept
    ep: int = 1  # ranks of an expert-parallel group
    model: str = ""
    router: str = ""
    dispatch: str = ""
    hidden: int = 0
    source: str = ""  # what it was taken from

    @property
    def layers(self) -> tuple[int, ...]:
        """Global layers, ascending."""
        return tuple(sorted({x.layer for x in self.exchanges}))

    @property
    def slots(self) -> tuple[int, ...]:
        """Micro-batches of a step, ascending."""
        return tuple(sorted({x.slot for x in self.exchanges}))

    @property
    def rows(self) -> int:
        """Rows of a layer in an iteration: of all micro-batches and ranks."""
        return len(self.slots) * self.ranks

    def scaled(
        self,
        *,
        ranks: int | None = None,
        experts: int | None = None,
        k: int | None = None,
        ep: int | None = None,
    ) -> Scenario:
        """The scenario of another size; LayoutError if there cannot be such a run.

        None: as it is; of ``ep``, where ranks or experts are others: the largest number
        that divides both.
        """
        new = replace(
            self,
            ranks=self.ranks if ranks is None else ranks,
            experts=self.experts if experts is None else experts,
            k=self.k if k is None else k,
        )
        resized = (new.ranks, new.experts) != (self.ranks, self.experts)
        group = ep or (math.gcd(new.ranks, new.experts) if resized else self.ep)
        if ep is None and group == 1 < min(self.ep, new.ranks, new.experts):
            raise LayoutError(
                "experts spread evenly over expert-parallel ranks, but "
                f"{new.experts} experts and {new.ranks} ranks have no common divisor: "
                "change --experts or --ranks, or give --ep 1 for a run that sends "
                "nothing between ranks"
            )
        for name, value, most in (
            ("ranks", new.ranks, MOST["ranks"]),
            ("experts", new.experts, MOST["experts"]),
            ("ep", group, new.ranks),
            ("k", new.k, new.experts),
        ):
            refuse_beyond(name, value, most)
        if new.ranks % group or new.experts % group:
            raise LayoutError(
                "an expert-parallel group spreads ranks and experts evenly, but "
                f"{group} does not divide {new.ranks} ranks and {new.experts} experts: "
                "give --ep a divisor of both"
            )
        if len(self.exchanges) * new.ranks * new.experts > MOST_CELLS:
            raise LayoutError(
                f"an iteration has at most {MOST_CELLS} cells, but "
                f"{len(self.exchanges)} exchanges of {new.ranks} ranks and "
                f"{new.experts} experts are more: lower --ranks or --experts"
            )
        # a capacity is a multiple of what an expert gets of a rank if all get the same
        ratio = new.k * self.experts / (self.k * new.experts)
        return replace(
            new,
            ep=group,
            capacity=math.ceil(self.capacity * ratio),
            padded=math.ceil(self.padded * ratio),
        )


def refuse_beyond(name: str, value: int, most: int) -> None:
    """Raise LayoutError for a value of an option below 1 or above ``most``."""
    if not 1 <= value <= most:
        raise LayoutError(
            f"{name} of a generated run are from 1 to {most:,}, but {value:,} was "
            f"asked for: change --{name}"
        )


def scenario_and_rows(
    trace: Trace, iterations: range | None = None
) -> tuple[Scenario, Int32]:
    """Read the scenario of a trace, and the rows of its micro-batches and ranks.

    Parameters
    ----------
    trace
        Data- and expert-parallel, with its routing.
    iterations
        Those that count; None: all.

    Returns
    -------
    scenario, rows
        ``[T, L, S R, E]`` int32 token copies.

    Raises
    ------
    TraceError
        If the trace does not hold the routing of all its ranks.
    AnalysisError
        If its exchanges differ in experts; if there are fewer than SHORTEST successive
        iterations; or if a row does not sum to k times the tokens of a rank.
    """
    layers = routed_layers(trace)
    experts = sorted({layer.demand.shape[2] for layer in layers})
    if len(experts) != 1:
        raise AnalysisError(
            "layers of one number of experts are fitted, but these have "
            f"{experts}: select layers of one kind"
        )
    recorded = (layer.iteration for layer in layers)
    common = reduce(np.intersect1d, recorded, trace.iterations)
    if iterations is not None:
        common = common[(common >= iterations.start) & (common < iterations.stop)]
    total = len(common)
    if total < SHORTEST:
        raise AnalysisError(
            f"at least {SHORTEST} iterations are fitted, but {trace.name} has {total} "
            "that every layer and rank recorded: capture more"
        )
    stretch, spacing = regular_stretch(training_steps(trace, common))
    if spacing > 1 or stretch != slice(0, total):
        raise AnalysisError(
            "successive iterations are fitted, but those of "
            f"{trace.name} are {spacing} apart or have gaps (the longest part without "
            f"one has {stretch.stop - stretch.start} of {total}): capture all of them"
        )
    keep = [np.flatnonzero(np.isin(layer.iteration, common)) for layer in layers]
    demand = [take(layer.demand, of) for layer, of in zip(layers, keep, strict=True)]
    copies, k = int(demand[0][0, 0].sum()), trace.meta.k or 1
    sums = np.array(
        [(rows.sum(axis=2).min(), rows.sum(axis=2).max()) for rows in demand]
    )
    if (sums != copies).any() or copies % k:
        raise AnalysisError(
            f"each rank sends k x tokens = {copies} copies a layer, but in "
            f"{trace.name} ranks send {int(sums.min())} to {int(sums.max())}, and k is "
            f"{k}: fit a run whose ranks have as many tokens and experts a token"
        )
    # the most that any rank kept for an expert of which it dropped some; 0: none
    most_kept = [0]
    for layer, of, routed in zip(layers, keep, demand, strict=True):
        if layer.dropped is not None:
            dropped = take(layer.dropped, of)
            most_kept.append(int((routed - dropped)[dropped > 0].max(initial=0)))
    scenario = Scenario(
        exchanges=tuple(
            Exchange(
                layer=layer.layer,
                slot=layer.slot,
                row_bytes=layer.row_bytes,
                dtype=layer.dtype,
                phases=layer.phases,
            )
            for layer in layers
        ),
        ranks=trace.meta.world,
        experts=experts[0],
        k=k,
        tokens=copies // k,
        capacity=max(most_kept),
        padded=max(layer.padded for layer in layers),
        ep=_expert_parallel(trace),
        model=trace.meta.model,
        router=trace.meta.router,
        dispatch=trace.meta.dispatch,
        hidden=trace.meta.hidden,
        source=trace.name,
    )
    rows = np.empty(
        (total, len(scenario.layers), scenario.rows, scenario.experts), np.int32
    )
    for layer, counts in zip(layers, demand, strict=True):
        first = scenario.slots.index(layer.slot) * scenario.ranks
        number = scenario.layers.index(layer.layer)
        rows[:, number, first : first + scenario.ranks] = counts
    return scenario, rows


def _expert_parallel(trace: Trace) -> int:
    """Ranks among which the experts of a layer are placed, whatever its group is."""
    hosts: defaultdict[tuple[int, int], set[int]] = defaultdict(set)
    for group, layer, rank in trace.placements[["group", "layer", "rank"]].tolist():
        hosts[group, layer].add(rank)
    groups = (len(g.ranks) for g in trace.groups if g.kind == "ep")
    return max(map(len, hosts.values()), default=max(groups, default=1))
