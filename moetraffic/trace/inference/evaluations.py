"""Find the evaluations among the passes of a run whose iterations are known.

A forward pass without a gradient is an evaluation, in a run whose other passes have
gradients.  The first layers of a training pass may lack gradients too: a pass with a
gradient is a training pass.  Evaluations within a training iteration become iterations
of their own, before or after it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from moetraffic.arrays import Bool, Int64
from moetraffic.trace.merge.rank_record import RANK_STEP, CallingModule, Record
from moetraffic.trace.model import UNKNOWN_TIME, Source

from .agreement import fill_steps
from .calls import Calls, inferred_step
from .units import Role, Unit

TRAINED = 0.5  # minimum share of steps with a backward for classifying the others
IN_EVALUATION_MODE = 2
WHOLE, BEFORE, AFTER = "whole", "before", "after"


def annotated_units(calls: Calls) -> list[Unit]:
    """Collect the annotated forward dispatches of a rank, with their combines."""
    current: dict[int, Unit] = {}
    units: list[Unit] = []
    wanted = calls.where([s.direction == "forward" and s.phase for s in calls.sites])
    for place in np.flatnonzero(calls.exchange & wanted).tolist():
        site = calls.sites[calls.table["site"][place]]
        if site.phase == "dispatch" or site.layer not in current:
            iteration = int(calls.table["iteration"][place])
            unit = Unit(calls.rank, iteration, recomputed=False, layer=site.layer)
            units.append(unit)
            current[site.layer] = unit
        current[site.layer].calls.append(place)
        current[site.layer].roles.append(Role(site.phase))
    return units


def classify_passes(
    calls: Calls,
    units: Sequence[Unit],
    partner: Int64,
    modules: Sequence[CallingModule],
) -> set[int]:
    """Set whether units are of a training pass; return the unclear iterations.

    ``partner`` is the forward call of each gradient, ``[n]``, -1 if unknown.  An
    iteration is unclear if some of its training passes lack gradients: such a pass is
    no micro-batch, if the program did not use its loss.
    """
    backward = calls.where([s.direction == "backward" for s in calls.sites])
    backward &= calls.exchange
    linked = np.zeros(len(calls.table), bool)
    linked[partner[partner >= 0]] = True
    known = linked.sum() >= max(1, TRAINED * backward.sum())
    evaluates = calls.table["evaluates"]
    recorded = linked | (calls.table["grad"] == 1)
    recorded |= (calls.table["module_call"] > 0) & (evaluates == 0)
    states: dict[int, set[bool]] = defaultdict(set)
    for passed in _passes(units, modules):
        trains = [
            bool(recorded[u.calls].any()) or not (known or u.module) for u in passed
        ]
        for unit, own in zip(passed, trains, strict=True):
            in_evaluation = (evaluates[unit.calls] == IN_EVALUATION_MODE).all()
            unit.trained = own or (any(trains) and not in_evaluation)
        if any(trains):
            has_gradient = any(bool(linked[unit.calls].any()) for unit in passed)
            states[passed[0].iteration].add(has_gradient)
    return {iteration for iteration, kinds in states.items() if len(kinds) > 1}


def _passes(
    units: Sequence[Unit], modules: Sequence[CallingModule]
) -> Iterator[list[Unit]]:
    """Split units into forward passes: of one model, each of its layers once."""
    passed, last = list[Unit](), None
    layers = set[tuple[int, int]]()
    for unit in sorted(units, key=lambda u: u.calls[0]):
        if unit.recomputed:
            continue
        layer = unit.module, -1 if unit.module else unit.layer
        model = modules[unit.module - 1].model if unit.module else -1
        if passed and (layer in layers or (unit.iteration, model) != last):
            yield passed
            passed = []
            layers.clear()
        last = unit.iteration, model
        passed.append(unit)
        layers.add(layer)
    if passed:
        yield passed


def with_evaluations(
    record: Record, every: Sequence[Calls], units: Sequence[Unit]
) -> Record:
    """Make evaluations within training iterations iterations of their own.

    Marked training steps that have no pass with a gradient are evaluations.
    """
    own: dict[int, list[Unit]] = defaultdict(list)
    for unit in units:
        own[unit.rank].append(unit)
    evaluated = {
        calls.rank: _evaluated(calls, own[calls.rank])
        for calls in every
        if own[calls.rank] or calls.table["module_call"].any()
    }
    places = _places(every, evaluated)
    if sum(place != WHOLE for place in places.values()) < TRAINED * len(places):
        return record  # nothing is known to train
    steps = record.steps.copy()
    alone = [number for number, place in places.items() if place == WHOLE]
    lone = np.isin(steps["iteration"], alone) & (steps["kind"] == "train")
    steps["kind"][lone], steps["source"][lone] = "evaluation", Source.INFERRED
    record = replace(record, steps=steps)
    if record.meta.every == 1 and {BEFORE, AFTER} & {*places.values()}:
        record, new = _split(record, every, evaluated, places)
    else:
        new = set()
    last = max(places, default=-1)
    # an evaluation after the last step, if the capture was closed
    closed = all(rank.closed for rank in record.ranks.values())
    if closed and places.get(last) == WHOLE and last not in steps["iteration"]:
        new.add(int(record.calls["iteration"].max()))
    rows = [
        inferred_step(calls, number, "evaluation", own_calls)
        for calls in every
        for number in sorted(new)
        for own_calls in [record.calls["iteration"][calls.place] == number]
    ]
    steps = np.concatenate([record.steps, np.array(rows, RANK_STEP)])
    order = np.lexsort((steps["iteration"], steps["rank"]))
    return replace(record, steps=steps[order])


def _evaluated(calls: Calls, units: Sequence[Unit]) -> Bool:
    """Return which calls of a rank are of evaluations, ``[n]``.

    Other calls belong to the pass before them; the first ones to the pass after them.
    """
    # 1: trains, 0: evaluates, -1: unknown; without a module, but for units
    state = np.where(calls.table["module_call"] > 0, calls.table["evaluates"], 1)
    state = np.where(state == 1, -1, state == 0)
    for unit in units:
        state[unit.calls] = unit.trained
    state[calls.backward] = 1
    iteration = calls.table["iteration"]
    begins = np.flatnonzero(np.diff(iteration, prepend=iteration[:1] - 1))
    for first, end in zip(begins, [*begins[1:], len(state)], strict=True):
        own = state[first:end]
        known = np.flatnonzero(own >= 0)
        if len(known):
            last = np.searchsorted(known, np.arange(len(own)), side="right") - 1
            own[:] = own[known[np.maximum(last, 0)]]
    return np.asarray(state == 0, bool)


def _places(every: Sequence[Calls], evaluated: Mapping[int, Bool]) -> dict[int, str]:
    """Return where the evaluation of each iteration is; "" without one.

    All ranks with layers of experts must agree.
    """
    places: dict[int, set[str]] = defaultdict(set)
    for calls in every:
        if calls.rank not in evaluated:
            continue
        iteration, mask = calls.table["iteration"], evaluated[calls.rank]
        numbers, first, size = np.unique(
            iteration, return_index=True, return_counts=True
        )
        count = np.bincount(np.searchsorted(numbers, iteration), mask)
        place = np.where(mask[first], BEFORE, AFTER)
        place = np.where(count == size, WHOLE, np.where(count > 0, place, ""))
        for number, name in zip(numbers.tolist(), place.tolist(), strict=True):
            places[number].add(name)
    return {n: p.pop() if len(p) == 1 else "" for n, p in sorted(places.items())}


def _split(
    record: Record,
    every: Sequence[Calls],
    evaluated: Mapping[int, Bool],
    places: Mapping[int, str],
) -> tuple[Record, set[int]]:
    """Number all iterations again; return the numbers of those that are new."""
    count = 1 + max(
        int(record.calls["iteration"].max()), int(record.steps["iteration"].max())
    )
    before, after = (
        np.array([places.get(n) == place for n in range(count)], bool)
        for place in (BEFORE, AFTER)
    )
    split = before | after
    first = np.arange(count) + np.cumsum(split) - split
    train, evaluation = first + before, first + after
    numbers = {}
    for calls in every:
        if calls.rank in evaluated:
            iteration, mask = calls.table["iteration"], evaluated[calls.rank]
            numbers[calls.rank] = np.where(
                mask, evaluation[iteration], train[iteration]
            )
    filled = fill_steps(every, numbers)
    if filled is None:
        return record, set()
    table, steps = record.calls.copy(), record.steps.copy()
    for calls in every:
        table["iteration"][calls.place] = filled[calls.rank]
    for row in steps:
        number = int(row["iteration"])
        row["iteration"] = train[number]
        if split[number]:
            # the later of both begins with its first call
            own = (table["rank"] == row["rank"]) & (
                table["iteration"] == first[number] + 1
            )
            middle = table["issue"][own].min() if own.any() else UNKNOWN_TIME
            row["start" if before[number] else "end"] = middle
    return replace(record, calls=table, steps=steps), set(evaluation[split].tolist())
