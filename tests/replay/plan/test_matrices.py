"""Bytes of dense operations are the ring's, and buffers hold them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moetraffic.patterns.algorithms import collective_matrix
from moetraffic.patterns.bandwidth.collective import wire_bytes
from moetraffic.patterns.bandwidth.moved_bytes import sizes, traffic_bytes
from moetraffic.replay.plan.matrices import buffers
from moetraffic.replay.plan.operations import KINDS, operations

CUT = {"reduce_scatter", "scatter"}
ROOTED = {"broadcast", "reduce", "gather", "scatter"}


@given(
    kind=st.sampled_from([k for k in KINDS if k not in ("all_to_all", "barrier")]),
    width=st.integers(2, 9),
    size=st.integers(0, 10**9),
)
def test_bytes_are_those_of_the_ring_and_the_busiest_link_is_nccls(kind, width, size):
    if kind in CUT:
        size -= size % width
    network, busiest, largest = traffic_bytes(
        kind, np.array([size]), np.array([width]), np.array([False])
    )[:, 0].tolist()
    # nccl-tests counts the whole array of what is gathered
    whole = size * width if kind in ("all_gather", "gather") else size
    assert largest == whole
    pair = 2 if kind == "send_recv" else width
    assert busiest == pytest.approx(float(wire_bytes(kind, pair, whole)), abs=1)
    if kind != "send_recv" and size:
        root = np.zeros(width, np.int64)
        root[0] = size
        volumes = root if kind == "scatter" else np.full(width, size)
        assert network == collective_matrix(kind, volumes, "ring").sum()


def test_ring_traffic_of_a_plan_is_a_known_multiple_of_the_payload_of_calls(toy):
    trace = toy(world=4)
    plan, calls = operations(trace), trace.calls()
    payload = calls[calls.operation == "all_reduce"]["bytes"].sum()
    mine = plan.kind == KINDS.index("all_reduce")
    assert payload > 0
    assert plan.total_bytes[mine].sum() == 2 * 3 / 4 * payload


@given(st.lists(st.integers(0, 1 << 40), min_size=1, max_size=8))
def test_a_size_holds_what_each_member_gave_and_cuts_evenly(given_bytes):
    nbytes = np.array([given_bytes], np.int64)
    for kind in KINDS[1:]:
        size = int(sizes(kind, nbytes)[0])
        assert size >= max(given_bytes)
        assert size < max(given_bytes) + len(given_bytes)
        if kind in CUT:
            assert size % len(given_bytes) == 0


@pytest.mark.parametrize("kind", KINDS[1:])
def test_what_is_sent_is_received(kind):
    members, size = (0, 2, 5), np.array([90])
    ends = np.array([2 if kind in ("broadcast", "scatter", "send_recv") else -1])
    to = np.array([5 if kind in ("reduce", "gather", "send_recv") else -1])
    both = [buffers(kind, size, np.array([3]), r, ends, to) for r in members]
    send, receive = (np.array([b[i][0] for b in both]) for i in (0, 1))
    if kind in ("all_reduce", "reduce", "broadcast"):  # in one buffer
        assert (send.tolist(), receive.tolist()) == ([0] * 3, [90] * 3)
    elif kind == "all_gather":
        assert (receive == send.sum()).all()
    elif kind == "reduce_scatter":
        assert (receive.sum() == send).all()
    else:
        assert send.sum() == receive.sum()
