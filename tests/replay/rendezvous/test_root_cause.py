"""Ranks that only have each other's word find who failed first."""

from __future__ import annotations

import pytest

from moetraffic.replay.execution.control import MemoryNeed, find_memory_shortage
from moetraffic.replay.rendezvous.rendezvous import Handshake, find_mismatch
from moetraffic.replay.rendezvous.root_cause import Report, find_root_cause


def report(rank, cause="peer", **fields):
    said = {"operation": f"operation {fields.get('entered', 9) // 2}", "message": "why"}
    said |= {"blames": rank, "entered": 9, "seen": {}} | fields
    return Report(rank=rank, cause=cause, **said)


@pytest.mark.parametrize(
    ("reports", "missing", "seen", "rank", "operation", "reason"),
    [
        # one is gone without a word, where the earliest of the others waits for it
        (
            [report(0, entered=9), report(2, entered=5)],
            [1],
            {"1": "ended"},
            1,
            "operation 2",
            "ended without an error report: it was killed, or crashed",
        ),
        # a stopped one explains a silent one, whoever saw it
        (
            [report(0, seen={"3": "stopped"})],
            [1, 3],
            {},
            3,
            "operation 4",
            "was stopped by a signal and did not go on",
        ),
        # of two silent ones, it is the one that is gone
        (
            [report(0)],
            [1, 2],
            {"2": "ended"},
            2,
            "operation 4",
            "ended without an error report",
        ),
        # on another host nothing can be seen
        ([report(0)], [1], {}, 1, "operation 4", "did not answer"),
        # an error of its own explains all who are missing
        (
            [report(0), report(2, "own", message="KeyError: 3", entered=3)],
            [1],
            {},
            2,
            "operation 1",
            "failed: KeyError: 3",
        ),
        # a contradiction that was seen comes before everything
        (
            [report(0), report(1, "own"), report(2, "mismatch", blames=0)],
            [],
            {},
            0,
            "operation 4",
            "why",
        ),
    ],
)
def test_the_first_to_fail_is_named(reports, missing, seen, rank, operation, reason):
    found = find_root_cause({r.rank: r for r in reports}, missing, seen)
    assert (found.rank, found.operation) == (rank, operation)
    assert found.reason.startswith(reason)
    assert found.reporter == min(r.rank for r in reports)
    assert found.cause == "peer"


def handshake(**terms):
    return Handshake(terms=terms, node="a", pid=1, space="", nonce="n")


def test_the_odd_rank_is_named_with_the_first_term_that_differs():
    same, odd = handshake(torch="2.13", plan="x"), handshake(torch="2.4", plan="y")
    assert find_mismatch([same, same, same]) is None
    found = find_mismatch([same, odd, same])
    assert (found.rank, found.cause) == (1, "mismatch")
    assert found.reason.startswith("has torch 2.4, while rank 0 has 2.13: give every")
    # most decide, not rank 0
    assert find_mismatch([odd, same, same]).rank == 0
    assert find_mismatch([same, handshake(plan="x")]).reason.startswith(
        "has torch none,"
    )
    assert find_mismatch([same, same, handshake(torch="2.13", plan="z")]) == (0, 2)


def test_memory_is_added_up_over_the_ranks_of_a_pool():
    def need(node, needs, free, pool="host"):
        return MemoryNeed(node=node, pool=pool, needs=needs, free=free)

    assert find_memory_shortage([need("a", 40, 100), need("a", 60, 120)]) is None
    assert (
        find_memory_shortage([need("a", 10**9, -1)]) is None
    )  # the system does not tell
    assert find_memory_shortage([need("a", 60, 100), need("b", 60, 100)]) is None
    gpus = [need("a", 60, 100, "cuda:0"), need("a", 60, 100, "cuda:1")]
    assert find_memory_shortage(gpus) is None
    found = find_memory_shortage(
        [need("b", 1, 9), need("a", 50, 110), need("a", 61, 115)]
    )
    assert (found.rank, found.operation) == (1, "start-up")
    assert "those of 1 more ranks need 111 B on a, where 110 B are free" in found.reason
