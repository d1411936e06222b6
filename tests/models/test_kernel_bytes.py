"""What a pattern says crosses the network is what the kernel counted there."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moetraffic.patterns import Layout, ModelShape, Training, Workload
from moetraffic.patterns.calls import Pattern, workload_pattern
from moetraffic.patterns.collectives import binomial_broadcast, collective_matrix
from moetraffic.patterns.layout import ELEMENT_BYTES
from moetraffic.patterns.matrices import call_matrix, traffic_matrix

Run = Callable[..., list[Any]]

LIBRARIES = runpy.run_path(str(Path(__file__).with_name("libraries.py")))

HEADER = 48
"""Bytes of a message's header, of its announcement, and of asking for it."""

JITTER = 6 * HEADER
"""By which two barriers may differ: a message that is asked for is not announced."""

pytestmark = pytest.mark.skipif(
    bool(LIBRARIES["why_not"]()), reason=LIBRARIES["why_not"]() or "it can be counted"
)


def framing(messages: np.ndarray) -> np.ndarray:
    """Bytes of headers: two to where a message goes, one the other way, at most."""
    return HEADER * (2 * messages + messages.T)


def messages_of(
    operation: str, volumes: np.ndarray, root: int = 0, element: int = 4
) -> np.ndarray:
    """``[n, n]`` messages of a collective of gloo; each has a header, is announced by
    another one unless it is asked for already, and asked for by one the other way."""
    ranks, size = len(volumes), int(volumes.max())
    out = np.zeros((ranks, ranks), np.int64)
    if operation == "broadcast":
        return binomial_broadcast(1, ranks, root)
    if operation == "all_gather":  # two messages a part, round a ring
        return 2 * (ranks - 1) * np.roll(np.eye(ranks, dtype=np.int64), 1, axis=1)
    # two segments at least of each rank's part of a ring, each a megabyte at most
    most = element * max(1, (1 << 20) // element)
    each = ceil(max(ceil(size / most), 2 * ranks) / ranks)
    length = ceil(ceil(size / (each * ranks)) / element) * element
    left = np.clip(size - length * np.arange(each * ranks), 0, length)
    filled = (left.reshape(ranks, each) > 0).sum(axis=1)  # nothing is not sent
    before = (np.arange(ranks), np.arange(ranks) - 1)
    if operation == "reduce":
        out[before] = filled.sum() - filled
        out[np.arange(ranks) != root, root] += filled[np.arange(ranks) != root] > 0
        return out
    out[before] = 2 * filled.sum() - filled - np.roll(filled, 1)
    return out


def headers_of(pattern: Pattern) -> np.ndarray:
    """``[R, R]`` bytes of gloo's headers in an iteration."""
    out = np.zeros((pattern.layout.world, pattern.layout.world), np.int64)
    for call, groups, times in pattern.calls():
        members = len(groups[0])
        if call.operation == "send_recv":
            messages = np.asarray(call_matrix(call, members, "gloo") > 0, np.int64)
        elif call.operation == "all_to_all":
            messages = 1 - np.eye(members, dtype=np.int64)
        else:
            volumes = np.full(members, call.size, np.int64)
            element = ELEMENT_BYTES.get(call.dtype, 8)
            messages = messages_of(call.operation, volumes, call.root, element)
        for group in groups:
            out[np.ix_(group, group)] += times * framing(messages)
    return out


def between(ranks: list[dict[tuple[str, str], int]]) -> np.ndarray:
    """``[R, R]`` bytes between ranks, row sends, from what each of them received.

    Both ends name a connection: of two ranks, connections to different ports may have
    the same port of their own.
    """
    owner = {ends: rank for rank, seen in enumerate(ranks) for ends in seen}
    matrix = np.zeros((len(ranks), len(ranks)), np.int64)
    for rank, seen in enumerate(ranks):
        for (own, other), count in seen.items():
            if (other, own) in owner:
                matrix[owner[other, own], rank] += count
    return matrix


def test_ranks_with_the_same_port_of_their_own_are_told_apart() -> None:
    first = {("h:9", "h:1"): 5, ("h:2", "h:7"): 0}
    second = {("h:9", "h:2"): 7}  # the same port 9, to another one
    servers = {("h:1", "h:9"): 3, ("h:2", "h:9"): 4}
    found = between([first, second, servers])
    assert found.tolist() == [[0, 0, 3], [0, 0, 4], [5, 7, 0]]


def spent(snapshots: list[list[Any]]) -> np.ndarray:
    """Between the first two of three snapshots of each rank, without a barrier."""
    first, second, third = (
        between([mine[at] for mine in snapshots]) for at in range(3)
    )
    return (second - first) - (third - second)


@pytest.mark.parametrize("world", [3, pytest.param(4, marks=pytest.mark.slow)])
def test_gloo_sends_what_is_said_of_it_to_the_byte(world: int, run_ranks: Run) -> None:
    cases = [
        ("all_reduce", 12_345, 0),
        ("all_reduce", 1, 0),
        ("all_reduce", 1_600_003, 0),  # segments of a megabyte
        ("reduce_scatter", 24_000, 0),
        ("all_gather", 5_001, 0),
        ("broadcast", 7_001, 1),
        ("reduce", 10_007, 1),
        ("reduce", 3, 2),
        ("all_to_all", 12_000, 0),
    ]
    ranks = run_ranks("collectives", world, cases=cases)
    for at, (operation, elements, root) in enumerate(cases):
        counted = spent([mine[at] for mine in ranks])
        size = 4 * elements
        if operation == "all_to_all":
            each = 1 - np.eye(world, dtype=np.int64)
            payload, messages = size // world * each, each
        else:
            volumes = np.full(world, size, np.int64)
            payload = collective_matrix(operation, volumes, "gloo", root=root)
            messages = messages_of(operation, volumes, root)
        headers = counted - payload
        assert (headers % HEADER == 0).all(), (operation, elements)
        assert (headers >= -JITTER).all()
        assert (headers <= framing(messages) + JITTER).all()


EIGHT = {"dp": 2, "ep": 2, "tp": 2, "pp": 2}
WIDE = Workload(
    model=ModelShape(layers=4, hidden=128, heads=4, sequence=64, experts=8),
    training=Training(iterations=5, micro_batch=2, accumulation=2, warmup=0),
)


@pytest.mark.parametrize(
    "layout",
    [
        EIGHT,
        pytest.param({"dp": 4, "ep": 2, "zero": 1}, marks=pytest.mark.slow),
        pytest.param({"dp": 4, "ep": 2, "zero": 2}, marks=pytest.mark.slow),
        pytest.param({"dp": 4, "ep": 2, "zero": 3}, marks=pytest.mark.slow),
        pytest.param({"dp": 3}, marks=pytest.mark.slow),
        pytest.param({"pp": 4}, marks=pytest.mark.slow),
        pytest.param({"tp": 4}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_a_run_sends_between_ranks_what_was_predicted(
    layout: dict[str, Any], run_ranks: Run
) -> None:
    work = replace(
        WIDE,
        layout=Layout(**layout),
        gating=replace(WIDE.gating, dispatch="padded"),
        training=replace(WIDE.training, accumulation=max(2, layout.get("pp", 1))),
    )
    if layout.get("ep", 1) == 1:
        work = replace(work, model=replace(work.model, experts=0))
    steps = 3
    ranks = run_ranks(
        "counted", work.layout.world, workload=work.to_json(), steps=steps
    )
    counted = spent(ranks)
    pattern = workload_pattern(work)
    payload = steps * traffic_matrix(pattern, algorithm="gloo")
    headers = steps * headers_of(pattern)
    assert payload.sum() > 1e6
    left = counted - payload - headers
    # where more than norms and losses is sent
    large = payload > 1e5
    assert (abs(left)[large] <= 0.002 * payload[large]).all()
    # announcements that were spared, and what barriers differ by
    assert (left <= JITTER).all()
    assert (left >= -headers - JITTER).all()
