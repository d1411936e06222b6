"""Find the evaluations among the passes of a run whose iterations are known.

A forward pass without a gradient is an evaluation, in a run whose other passes have
gradients.  The first layers of a training pass may lack gradients too: a pass with a
gradient is a training pass.  Evaluations within a training iteration become iterations
of their own, before or after it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from moetraffic.arrays import Bool, Int64
from moetraffic.trace.merge.rank_record import RANK_STEP, CallingModule, Record
from moetraffic.trace.model import UNKNOWN_TIME, Source

from .agreement import fill_steps
from .calls import Calls, time_span
from .units import Role, Unit

TRAINED = 0.5  # minimum share of steps with a backward for classifying the others
IN_EVALUATION_MODE = 2
WHOLE, BEFORE, AFTER = "whole", "before", "after"


def annotated_units(calls: Calls) -> list[Unit]:
    """Collect the annotated forward dispatches of a rank, with their combines."""
    units: list[Unit] = []
    current: dict[int, Unit] = {}
    wanted = calls.where([s.direction == "forward" and s.phase for s in calls.sites])
    for place in np.flatnonzero(calls.exchange & wanted).tolist():
        site = calls.sites[calls.table["site"][place]]
        unit = current.get(site.layer)
        if unit is None or site.phase == "dispatch":
            iteration = int(calls.table["iteration"][place])
            unit = Unit(calls.rank, iteration, recomputed=False, layer=site.layer)
            units.append(unit)
            current[site.layer] = unit
        unit.calls.append(place)
        unit.roles.append(Role(site.phase))
    return units


def trained_units(
    calls: Calls,
    units: Sequence[Unit],
    partner: Int64,
    modules: Sequence[CallingModule],
) -> dict[int, bool]:
    """Return whether each unit of a rank, by its ``id``, is part of a training pass.

    ``partner`` is the forward call of each gradient, ``[n]``, -1 if unknown.
    """
    backward = calls.where([s.direction == "backward" for s in calls.sites])
    backward &= calls.exchange
    known = int((partner >= 0).sum()) >= max(1, TRAINED * int(backward.sum()))
    evaluates = calls.table["evaluates"]
    recorded = calls.table["grad"] == 1
    recorded |= (calls.table["module_call"] > 0) & (evaluates == 0)
    recorded[partner[partner >= 0]] = True
    trained, sure = dict[int, bool](), set[int]()
    for unit in units:
        own = unit.calls
        unsure = not (known or unit.module)
        trained[id(unit)] = unsure or unit.recomputed or bool(recorded[own].any())
        if (evaluates[own] == IN_EVALUATION_MODE).all():
            sure.add(id(unit))
    for part in _passes(units, modules):
        if any(trained[id(unit)] for unit in part):
            for unit in part:
                trained[id(unit)] |= id(unit) not in sure
    return trained


def unclear_iterations(
    units: Sequence[Unit],
    partner: Int64,
    modules: Sequence[CallingModule],
    trained: Mapping[int, bool],
) -> set[int]:
    """Return the iterations with training passes of which some lack gradients.

    Such a pass is no micro-batch, if the program did not use its loss.
    """
    with_gradient = set(partner[partner >= 0].tolist())
    states: dict[int, set[bool]] = defaultdict(set)
    for part in _passes(units, modules):
        if any(trained[id(unit)] for unit in part):
            linked = any(not with_gradient.isdisjoint(unit.calls) for unit in part)
            states[part[0].iteration].add(linked)
    return {iteration for iteration, linked in states.items() if len(linked) > 1}


def _passes(
    units: Sequence[Unit], modules: Sequence[CallingModule]
) -> Iterable[list[Unit]]:
    """Split units into forward passes: of one model, each of its layers once."""
    part, last = list[Unit](), None
    seen = set[tuple[int, int]]()
    for unit in sorted(units, key=lambda u: u.calls[0]):
        if unit.recomputed:
            continue
        layer = unit.module, -1 if unit.module else unit.layer
        model = modules[unit.module - 1].model if unit.module else -1
        if layer in seen or (unit.iteration, model) != last:
            if part:
                yield part
            part, last = [], (unit.iteration, model)
            seen.clear()
        part.append(unit)
        seen.add(layer)
    if part:
        yield part


def with_evaluations(
    record: Record,
    every: Sequence[Calls],
    units: Sequence[Unit],
    trained: Mapping[int, bool],
) -> Record:
    """Make evaluations within training iterations iterations of their own.

    Marked training steps that have no pass with a gradient are evaluations.
    """
    evaluated: dict[int, Bool] = {}
    own: dict[int, list[Unit]] = defaultdict(list)
    for unit in units:
        own[unit.rank].append(unit)
    for calls in every:
        if own[calls.rank] or calls.table["module_call"].any():
            evaluated[calls.rank] = _evaluated(calls, own[calls.rank], trained)
    places = _places(every, evaluated)
    trains = sum(place != WHOLE for place in places.values())
    if trains < TRAINED * len(places):
        return record  # nothing is known to train
    steps = record.steps.copy()
    whole = [i for i, place in places.items() if place == WHOLE]
    lone = np.isin(steps["iteration"], whole) & (steps["kind"] == "train")
    steps["kind"][lone], steps["source"][lone] = "evaluation", Source.INFERRED
    record = replace(record, steps=steps)
    last = max(places, default=-1)
    if places.get(last) == WHOLE and last not in steps["iteration"]:
        record = _with_last(record, every, last)
    if not {BEFORE, AFTER} & set(places.values()) or record.meta.every != 1:
        return record
    return _split(record, every, evaluated, places)


def _with_last(record: Record, every: Sequence[Calls], number: int) -> Record:
    """Add the evaluation after the last training step, if the capture was closed."""
    if not all(rank.closed for rank in record.ranks.values()):
        return record
    rows = []
    for calls in every:
        own = calls.table[calls.table["iteration"] == number]
        made = (Source.INFERRED, "evaluation", calls.rank)
        rows.append((number, np.nan, -1, *time_span(own), *made))
    steps = np.concatenate([record.steps, np.array(rows, RANK_STEP)])
    order = np.lexsort((steps["iteration"], steps["rank"]))
    return replace(record, steps=steps[order])


def _evaluated(
    calls: Calls, units: Sequence[Unit], trained: Mapping[int, bool]
) -> Bool:
    """Return which calls of a rank are of evaluations, ``[n]``.

    Other calls belong to the pass before them; the first ones to the pass after them.
    """
    # without a module, unknown but for units
    state = np.where(calls.table["module_call"] > 0, calls.table["evaluates"], 1)
    state = np.where(state == 1, -1, state == 0)
    for unit in units:
        state[unit.calls] = trained[id(unit)]
    state[calls.backward] = 1
    iteration = calls.table["iteration"]
    begins = np.flatnonzero(np.diff(iteration, prepend=iteration[:1] - 1))
    for first, end in zip(begins, [*begins[1:], len(state)], strict=True):
        part = state[first:end]
        known = np.flatnonzero(part >= 0)
        if len(known):
            last = np.searchsorted(known, np.arange(len(part)), side="right") - 1
            part[:] = part[known[np.maximum(last, 0)]]
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
        numbers, first = np.unique(iteration, return_index=True)
        counts = np.bincount(np.searchsorted(numbers, iteration), mask)
        sizes = np.bincount(np.searchsorted(numbers, iteration))
        for number, begin, count, size in zip(
            numbers.tolist(), first, counts, sizes, strict=True
        ):
            place = BEFORE if mask[begin] else AFTER
            place = WHOLE if count == size else place if count else ""
            places[number].add(place)
    return {n: next(iter(p)) if len(p) == 1 else "" for n, p in sorted(places.items())}


def _split(
    record: Record,
    every: Sequence[Calls],
    evaluated: Mapping[int, Bool],
    places: Mapping[int, str],
) -> Record:
    """Number the evaluations and all iterations again."""
    last = max(
        int(record.calls["iteration"].max()), int(record.steps["iteration"].max())
    )
    train, evaluation = np.zeros((2, last + 1), np.int64)
    shift = 0
    for number in range(last + 1):
        place = places.get(number, "")
        train[number] = evaluation[number] = number + shift
        if place in (BEFORE, AFTER):
            shift += 1
            (train if place == BEFORE else evaluation)[number] += 1
    numbers = {}
    for calls in every:
        if calls.rank in evaluated:
            iteration = calls.table["iteration"]
            numbers[calls.rank] = np.where(
                evaluated[calls.rank], evaluation[iteration], train[iteration]
            )
    filled = fill_steps(every, numbers)
    if filled is None:
        return record
    table, steps, rows = record.calls.copy(), record.steps.copy(), list[Any]()
    for calls in every:
        table["iteration"][calls.place] = filled[calls.rank]
    split = [n for n, place in places.items() if place in (BEFORE, AFTER)]
    for row in steps:
        number = int(row["iteration"])
        row["iteration"] = train[number]
        if number in split:
            held = (table["rank"] == row["rank"]) & (
                table["iteration"] == max(train[number], evaluation[number])
            )
            # the later of both begins with its first call
            issue = table["issue"][held]
            middle = int(issue.min()) if len(issue) else UNKNOWN_TIME
            begin, end = int(row["start"]), int(row["end"])
            if places[number] == BEFORE:
                row["start"], end = middle, middle
            else:
                row["end"], begin = middle, middle
            rows.append(
                (
                    *(evaluation[number], np.nan, -1, begin, end, Source.INFERRED),
                    *("evaluation", row["rank"]),
                )
            )
    steps = np.concatenate([steps, np.array(rows, RANK_STEP)])
    order = np.lexsort((steps["iteration"], steps["rank"]))
    return replace(record, calls=table, steps=steps[order])
