"""Series of a run's exchanges, read from its trace."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from moetraffic.analysis.exchange import own_iterations, training_steps
from moetraffic.arrays import Float64, Int64
from moetraffic.errors import AnalysisError
from moetraffic.spelling import check_choice
from moetraffic.trace import ALL_TO_ALL, PHASES, Trace
from moetraffic.trace.iterations import regular_stretch
from moetraffic.trace.model import ROUTING, DroppedForm

from .exchange_series import HELD_BYTES, ExchangeSeries, LayerKey, MatrixWindow

AT_ONCE = 64
"""Exchanges that are read at a time."""


def known_sites(
    trace: Trace, *, phase: str, layers: Sequence[int] | None, unnamed: bool = False
) -> list[int]:
    """List the sites of one phase's all-to-alls whose bytes are known.

    ``unnamed`` takes all where no site has a phase.

    Raises
    ------
    AnalysisError
        If there is no such phase, or no such site.
    """
    check_choice("the phase", phase, PHASES, AnalysisError)
    every = unnamed and not any(site.phase for site in trace.sites)
    _check_layers(trace, None if every else layers)
    known = trace.square & trace.has_bytes
    found = [
        number
        for number, site in enumerate(trace.sites)
        if known[number]
        and site.direction != "recompute"
        and (every or site.phase == phase)
        and (layers is None or site.layer in layers)
    ]
    if not found:
        raise AnalysisError(
            f"plans serve all-to-alls whose bytes are known, but {trace.name} has "
            f"none of {phase}"
            + (f" in layers {list(layers)}" if layers else "")
            + ": import --row-bytes adds all-to-alls to routed tokens"
        )
    return found


def in_a_row(trace: Trace, iterations: Int64) -> list[str]:
    """Note that policies see iterations in a row that are apart in the run."""
    stretch, spacing = regular_stretch(training_steps(trace, iterations))
    notes = []
    if spacing > 1:
        notes.append(f"plans take iterations that are {spacing} apart as successive")
    if stretch != slice(0, len(iterations)):
        notes.append("iterations are missing: plans take the others as successive")
    return notes


def _check_layers(trace: Trace, layers: Sequence[int] | None) -> None:
    """Raise AnalysisError if a trace has no such MoE layers."""
    if unknown := sorted({*(layers or ())} - {*trace.layers}):
        raise AnalysisError(
            f"the MoE layers of {trace.name} are {list(trace.layers)}, not {unknown}: "
            "choose among these"
        )


def byte_series(
    trace: Trace,
    *,
    phase: str = "dispatch",
    layers: Sequence[int] | None = None,
    iterations: range | None = None,
) -> ExchangeSeries:
    """Read the bytes that each layer's exchange of one phase sends, by iteration.

    Parameters
    ----------
    trace
        With known bytes of all-to-alls; micro-batches of an iteration are summed.
    phase, layers, iterations
        Selection; None: all layers and training iterations.

    Returns
    -------
    ExchangeSeries
        Bytes between the ranks of all groups of a layer, ``[T, W, W]``; iterations that
        a rank did not record are omitted.

    Raises
    ------
    AnalysisError
        If the trace has no such exchange, or too few or too large ones.
    """
    sites: dict[int, list[int]] = {}
    for number in known_sites(trace, phase=phase, layers=layers):
        sites.setdefault(trace.sites[number].layer, []).append(number)
    notes = list[str]()
    iterations = own_iterations(trace, iterations, notes)
    training = trace.find(operation=ALL_TO_ALL, phase=phase, iterations=iterations)
    calls = {
        layer: trace.complete(training[np.isin(trace.occurrences.site[training], of)])
        for layer, of in sites.items()
    }
    when = _common(trace, calls)
    widths = {layer: _ranks(trace, of) for layer, of in sites.items()}
    held = sum(len(when) * len(w) ** 2 * 8 for w in widths.values()) <= HELD_BYTES
    found: dict[LayerKey, Float64 | MatrixWindow] = {}
    for layer, of in sorted(sites.items()):
        ranks = widths[layer]
        read = partial(_matrices, trace, calls[layer], of, ranks)
        if held:
            parts = np.array_split(when, max(1, -(-len(when) // AT_ONCE)))
            found[layer] = np.concatenate([read(part) for part in parts])
        else:
            found[layer] = MatrixWindow(
                partial(_one_matrix, read, when), (len(when), len(ranks), len(ranks))
            )
    rows = {trace.sites[number].row_bytes for of in sites.values() for number in of}
    return ExchangeSeries(
        name=str(trace.name),
        digest=trace.digest,
        phase=phase,
        iterations=when,
        layers=found,
        row_bytes=rows.pop() if len(rows) == 1 else 0,
        ranks={layer: tuple(ranks) for layer, ranks in widths.items()},
        notes=(*notes, *in_a_row(trace, when)),
    )


def token_series(
    trace: Trace,
    *,
    phase: str = "dispatch",
    layers: Sequence[int] | None = None,
    iterations: range | None = None,
) -> ExchangeSeries:
    """Read the token copies that each layer routes to its experts, by iteration.

    ``trace``: With known routing; micro-batches are summed.

    Copies that are sent are ``[T, W, E]``, of the ranks of an expert-parallel group;
    each group of a layer holds all experts and has a series of its own.  Where drops
    are unknown all copies that are routed count as sent, which a note states.

    Raises
    ------
    AnalysisError
        If the routing is not known, or the run is too short or has no such layer.
    """
    _check_layers(trace, layers)
    sites: dict[tuple[int, int], list[int]] = {}
    for number, site in enumerate(trace.sites):
        chosen = layers is None or site.layer in layers
        forward = site.operation == ROUTING and site.direction == "forward"
        if forward and chosen:
            sites.setdefault((site.layer, site.group), []).append(number)
    if not sites:
        raise AnalysisError(
            "experts are placed by the routing of tokens, but "
            f"{trace.name} has none"
            + (f" in layers {list(layers)}" if layers else "")
            + ": capture with a router hook"
        )
    notes = list[str]()
    iterations = own_iterations(trace, iterations, notes)
    routed = trace.find(operation=ROUTING, iterations=iterations)
    calls = {
        key: trace.complete(routed[np.isin(trace.occurrences.site[routed], of)])
        for key, of in sites.items()
    }
    when = _common(trace, calls)
    several = {layer for layer, _ in sites}
    several = {n for n in several if sum(layer == n for layer, _ in sites) > 1}
    found: dict[LayerKey, Float64] = {}
    ranks: dict[LayerKey, tuple[int, ...]] = {}
    for layer, group in sorted(sites):
        key: LayerKey = (layer, group) if layer in several else layer
        ranks[key] = trace.groups[group].ranks
        for number in sites[layer, group]:
            mine = calls[layer, group]
            mine = mine[trace.occurrences.site[mine] == number]
            mine = mine[np.isin(trace.occurrences.iteration[mine], when)]
            kept = trace.demand(mine).astype(np.float64)
            if trace.sites[number].dropped == DroppedForm.STORED:
                kept -= trace.dropped(mine)
            if key not in found:
                found[key] = np.zeros((len(when), *kept.shape[1:]))
            rows = np.searchsorted(when, trace.occurrences.iteration[mine])
            np.add.at(found[key], rows, kept)
    forms = {trace.sites[n].dropped for of in sites.values() for n in of}
    if DroppedForm.UNKNOWN in forms:
        notes.append(
            "dropped copies are unknown: all token copies that were routed count as "
            "sent"
        )
    rows_of = (
        site.row_bytes
        for site in trace.sites
        if site.operation == ALL_TO_ALL and site.phase == PHASES[0]
    )
    return ExchangeSeries(
        name=str(trace.name),
        digest=trace.digest,
        phase=phase,
        iterations=when,
        layers=found,
        row_bytes=next(rows_of, 0),
        ranks=ranks,
        notes=(*notes, *in_a_row(trace, when)),
    )


def _matrices(
    trace: Trace,
    calls: Int64,
    sites: Sequence[int],
    ranks: list[int],
    when: Int64,
) -> Float64:
    """Read the bytes between ranks in some iterations, ``[n, W, W]``."""
    at = {rank: i for i, rank in enumerate(ranks)}
    out = np.zeros((len(when), len(ranks), len(ranks)))
    mine = calls[np.isin(trace.occurrences.iteration[calls], when)]
    for number in sites:
        group = trace.groups[trace.sites[number].group]
        members = np.array([at[r] for r in group.ranks])
        part = mine[trace.occurrences.site[mine] == number]
        rows = np.searchsorted(when, trace.occurrences.iteration[part])
        for row, sent in zip(rows, trace.wire(part), strict=True):
            out[row][np.ix_(members, members)] += sent
    return out


def _one_matrix(read: Callable[[Int64], Float64], when: Int64, at: int) -> Float64:
    return np.asarray(read(when[at : at + 1])[0])


def _ranks(trace: Trace, sites: Sequence[int]) -> list[int]:
    return sorted({r for s in sites for r in trace.groups[trace.sites[s].group].ranks})


def _common(trace: Trace, calls: Mapping[Any, Int64]) -> Int64:
    """Return the iterations with all calls that most iterations have, ``[T]``."""
    kept: Int64 | None = None
    for of in calls.values():
        when, number = np.unique(trace.occurrences.iteration[of], return_counts=True)
        when = when[number == np.median(number)] if len(number) else when
        kept = when if kept is None else np.intersect1d(kept, when)
    return np.asarray(kept, np.int64)
