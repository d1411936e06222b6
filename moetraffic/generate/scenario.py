"""Scenario of a run: ranks, experts, tokens, capacity, bytes.

Taken from a trace, and scaled: more ranks are more rows like the captured ones, each
with as many tokens; capacity stays the same multiple of a balanced expert's share.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np

from moetraffic.analysis.exchange import training_steps
from moetraffic.arrays import Int32, Int64
from moetraffic.errors import AnalysisError, LayoutError
from moetraffic.trace import PHASES, Trace
from moetraffic.trace.iterations import regular_stretch
from moetraffic.trace.panel import ArrayPanel, take
from moetraffic.trace.routed import RoutedLayer
from moetraffic.trace.what_if.relocate import routed_layers

SHORTEST = 30
"""Fewest iterations of a run that a generator is fitted to."""

MOST_RANKS = 1 << 14
MOST_EXPERTS = 1 << 12
MOST_ITERATIONS = 10_000_000
MOST_CELLS = 1 << 28
"""Cells of an iteration's demand: a gigabyte, more than any run that is known has."""


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
    k: int  # experts of a token; 0: tokens choose none, experts choose tokens
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
    def copies(self) -> int:
        """Token copies of a rank in one exchange."""
        return self.k * self.tokens

    @property
    def layers(self) -> tuple[int, ...]:
        """Global layers, ascending."""
        return tuple(sorted({x.layer for x in self.exchanges}))

    @property
    def slots(self) -> tuple[int, ...]:
        """Micro-batches of a step, ascending."""
        return tuple(sorted({x.slot for x in self.exchanges}))

    @property
    def cells(self) -> int:
        """Cells of an iteration's demand, X R E."""
        return len(self.exchanges) * self.ranks * self.experts

    def stacked(self, rows: int) -> Scenario:
        """A scenario of one micro-batch whose ranks are the rows of all."""
        first = self.slots[0]
        return replace(
            self,
            exchanges=tuple(
                Exchange(layer=layer, slot=first, row_bytes=1) for layer in self.layers
            ),
            ranks=rows,
            ep=1,
        )

    def scaled(
        self,
        *,
        ranks: int | None = None,
        experts: int | None = None,
        k: int | None = None,
        ep: int | None = None,
    ) -> Scenario:
        """The scenario of other ranks, experts, k or expert-parallel ranks.

        Parameters
        ----------
        ranks, experts, k, ep
            None: as it is; of ``ep``: the largest group of at most as many ranks as
            experts that both spread over evenly, where ranks or experts are given.

        Raises
        ------
        LayoutError
            If there cannot be such a run.
        """
        own = (self.ranks, self.experts, self.k, self.ep)
        if all(
            a in (None, b) for a, b in zip((ranks, experts, k, ep), own, strict=True)
        ):
            return self
        new_ranks = self.ranks if ranks is None else ranks
        new_experts = self.experts if experts is None else experts
        new_k = self.k if k is None else k
        same = (new_ranks, new_experts) == (self.ranks, self.experts)
        group = (
            (self.ep if same else math.gcd(new_ranks, new_experts))
            if (ep is None)
            else ep
        )
        if ep is None and group == 1 < min(self.ep, new_ranks, new_experts):
            raise LayoutError(
                "experts spread evenly over expert-parallel ranks, but "
                f"{new_experts} experts and {new_ranks} ranks have no common divisor: "
                "change --experts or --ranks, or give --ep 1 for a run that sends "
                "nothing between ranks"
            )
        _refuse_impossible(new_ranks, new_experts, new_k, group, len(self.exchanges))
        # a capacity is a multiple of what an expert gets of a rank if all get the same
        ratio = new_k * self.experts / (self.k * new_experts) if self.k else 1.0
        return replace(
            self,
            ranks=new_ranks,
            experts=new_experts,
            k=new_k,
            ep=group,
            capacity=_scaled_rows(self.capacity, ratio),
            padded=_scaled_rows(self.padded, ratio),
        )


def scenario_of(
    trace: Trace, iterations: range | None = None
) -> tuple[Scenario, Sequence[RoutedLayer]]:
    """The scenario of a trace, and the routing of its exchanges.

    Parameters
    ----------
    trace
        Data- and expert-parallel, with its routing.
    iterations
        Those that count; None: all.

    Raises
    ------
    TraceError
        If the trace does not hold the routing of all its ranks.
    AnalysisError
        If its exchanges differ in experts, or no iteration is whole.
    """
    layers = routed_layers(trace)
    experts = {layer.demand.shape[2] for layer in layers}
    if len(experts) != 1:
        raise AnalysisError(
            "a model is fitted to layers of one number of experts, but these have "
            f"{sorted(experts)}: select layers of one kind"
        )
    recorded = (layer.iteration for layer in layers)
    common = reduce(np.intersect1d, recorded, trace.iterations)
    if iterations is not None:
        keep = (common >= iterations.start) & (common < iterations.stop)
        common = common[keep]
    if not len(common):
        raise AnalysisError(
            f"a model is fitted to iterations that every layer and rank recorded, but "
            f"{trace.name} has none: capture again"
        )
    layers = [_restricted(layer, common) for layer in layers]
    copies = layers[0].demand.read(0, len(common)).sum(axis=2)
    count = int(np.median(copies))
    k = trace.meta.k or 1
    return (
        Scenario(
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
            experts=experts.pop(),
            k=k,
            tokens=count // k,
            capacity=_capacity(layers),
            padded=max(layer.padded for layer in layers),
            ep=_expert_parallel(trace),
            model=trace.meta.model,
            router=trace.meta.router,
            dispatch=trace.meta.dispatch,
            hidden=trace.meta.hidden,
            source=trace.name,
        ),
        layers,
    )


def _expert_parallel(trace: Trace) -> int:
    """Ranks among which the experts of a layer are placed, whatever its group is."""
    hosts: defaultdict[tuple[int, int], set[int]] = defaultdict(set)
    for group, layer, rank in trace.placements[["group", "layer", "rank"]].tolist():
        hosts[group, layer].add(rank)
    groups = (len(g.ranks) for g in trace.groups if g.kind == "ep")
    return max(map(len, hosts.values()), default=max(groups, default=1))


def stacked_rows(
    trace: Trace, iterations: range | None = None
) -> tuple[Scenario, Int32]:
    """The scenario of a trace, and the rows of all its micro-batches and ranks.

    Parameters
    ----------
    trace, iterations
        As of :func:`scenario_of`.

    Returns
    -------
    scenario, rows
        ``[T, L, S R, E]`` int32 token copies.

    Raises
    ------
    TraceError, AnalysisError
        As :func:`scenario_of`; if there are fewer than SHORTEST iterations; or if a row
        does not sum to k times the tokens of a rank.
    """
    scenario, layers = scenario_of(trace, iterations)
    total, slots, ranks = len(layers[0].iteration), scenario.slots, scenario.ranks
    if total < SHORTEST:
        raise AnalysisError(
            f"a generator is fitted to at least {SHORTEST} iterations, but "
            f"{trace.name} has {total} that are whole: capture more"
        )
    stretch, spacing = regular_stretch(training_steps(trace, layers[0].iteration))
    if spacing > 1 or stretch != slice(0, total):
        raise AnalysisError(
            "a generator is fitted to successive iterations, but those of "
            f"{trace.name} are {spacing} apart or have gaps (the longest part without "
            f"one has {stretch.stop - stretch.start} of {total}): capture all of them"
        )
    shape = (total, len(scenario.layers), len(slots) * ranks, scenario.experts)
    found = np.empty(shape, np.int32)
    for layer in layers:
        first = slots.index(layer.slot) * ranks
        rows = slice(first, first + ranks)
        demand = layer.demand.read(0, total)
        found[:, scenario.layers.index(layer.layer), rows] = demand
    sums = found.sum(axis=3)
    if (sums != scenario.copies).any():
        raise AnalysisError(
            f"each rank sends k x tokens = {scenario.copies} copies a layer, but in "
            f"{scenario.source} ranks send {int(sums.min())} to {int(sums.max())}: "
            "fit to a run whose ranks have as many tokens and experts a token"
        )
    return scenario, found


def _capacity(layers: Sequence[RoutedLayer]) -> int:
    """The most that any rank kept for an expert of which it dropped some; 0: none."""
    most = 0
    for layer in layers:
        if layer.dropped is not None:
            count = len(layer.iteration)
            over = layer.dropped.read(0, count) > 0
            most = max(most, int(layer.kept(0, count)[over].max(initial=0)))
    return most


def _restricted(layer: RoutedLayer, iterations: Int64) -> RoutedLayer:
    keep = np.flatnonzero(np.isin(layer.iteration, iterations))
    dropped = layer.dropped
    return replace(
        layer,
        iteration=layer.iteration[keep],
        demand=ArrayPanel(take(layer.demand, keep)),
        dropped=None if dropped is None else ArrayPanel(take(dropped, keep)),
        chosen=None,  # a traffic model has no tokens
    )


def _scaled_rows(rows: int, ratio: float) -> int:
    return max(1, math.ceil(rows * ratio)) if rows else 0


def refuse_length(iterations: int) -> None:
    """Refuse a number of iterations that no generated run has.

    Raises
    ------
    LayoutError
        If it is below 1 or too large.
    """
    if not 1 <= iterations <= MOST_ITERATIONS:
        raise LayoutError(
            f"a generated run has 1 to {MOST_ITERATIONS:,} iterations, but "
            f"{iterations} were asked for: change --iterations"
        )


def _refuse_impossible(ranks: int, experts: int, k: int, ep: int, count: int) -> None:
    for name, value, most in (
        ("ranks", ranks, MOST_RANKS),
        ("experts", experts, MOST_EXPERTS),
        ("ep", ep, ranks),
        ("k", k, experts),
    ):
        if not 1 <= value <= most:
            raise LayoutError(
                f"{name} of a generated run are from 1 to {most}, but {value} was "
                f"asked for: change --{name}"
            )
    if ranks % ep or experts % ep:
        raise LayoutError(
            "an expert-parallel group spreads ranks and experts evenly, but "
            f"{ep} does not divide {ranks} ranks and {experts} experts: give --ep a "
            "divisor of both"
        )
    if count * ranks * experts > MOST_CELLS:
        raise LayoutError(
            f"an iteration has at most {MOST_CELLS} cells, but {count} exchanges of "
            f"{ranks} ranks and {experts} experts are more: lower --ranks or --experts"
        )
