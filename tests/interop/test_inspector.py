"""NCCL Inspector: all-to-alls from its sends and receives, and lost records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moetraffic.arrays import Int64
from moetraffic.interop.read import import_files
from moetraffic.trace import ALL_TO_ALL, Trace
from moetraffic.trace.model import Presence

MATRICES = [
    [[65536, 131072], [32768, 16384]],
    [[65536, 262144], [16384, 8192]],
    [[9000, 20000], [8192, 4096]],  # 4096 B are below what is written
]
SMALLEST = 8192


def records(rank: int) -> list[dict[str, Any]]:
    """Records of three all-to-alls of two ranks, each before an all-reduce."""
    made: list[dict[str, Any]] = []
    number = 0
    for call, sizes in enumerate(MATRICES):
        for peer in (0, 1):
            for name, size in (
                ("Send", sizes[rank][peer]),
                ("Recv", sizes[peer][rank]),
            ):
                number += 1
                perf = {"p2p": name, "p2p_sn": number, "p2p_peer": peer}
                if size >= SMALLEST:
                    made.append({"p2p_perf": {**perf, "p2p_msg_size_bytes": size}})
        coll = {"coll": "AllReduce", "coll_sn": call, "coll_msg_size_bytes": 40000}
        made.append({"coll_perf": coll})
    return made


def traced(folder: Path, lost: set[int]) -> tuple[Trace, str]:
    """Import logs of which rank 1 lacks some records; what is said to be missing."""
    for rank in (0, 1):
        header = {"id": "0xa", "rank": rank, "n_ranks": 2, "nnodes": 1}
        about = {"hostname": "node", "pid": 100 + rank}
        lines = [
            json.dumps({"header": header, "metadata": about, **record}) + "\n"
            for number, record in enumerate(records(rank))
            if rank == 0 or number not in lost
        ]
        (folder / f"node-pid{100 + rank}.log").write_text("".join(lines))
    found, merged = import_files([folder])
    assert (found, merged.contradictions) == ("nccl-inspector", ())
    return merged.trace, "; ".join(merged.missing)


def calls_of(trace: Trace, operation: str) -> Int64:
    """Calls of an operation; the files have no iterations."""
    sites = [n for n, site in enumerate(trace.sites) if site.operation == operation]
    return np.flatnonzero(np.isin(trace.occurrences.site, sites))


LAST = len(records(1)) - 1


@pytest.mark.parametrize(
    ("lost", "said"),
    [
        (set(), ""),
        ({6}, "sends and receives of rank 1 that its peers alone recorded: 1"),
        ({4}, "collectives that peers of rank 1 recorded, but not its file: 1"),
        ({LAST}, "collectives that peers of rank 1 recorded, but not its file: 1"),
        (
            {LAST - 2, LAST - 1},
            "sends and receives of rank 1 that its peers alone recorded: 2",
        ),
    ],
)
def test_sends_and_receives_are_all_to_alls(
    tmp_path: Path, lost: set[int], said: str
) -> None:
    trace, missing = traced(tmp_path, lost)
    assert said in missing
    assert ("rank 1" in missing) == bool(lost)
    calls = calls_of(trace, ALL_TO_ALL)
    assert len(calls) == 3
    for call, sizes in zip(calls.tolist(), MATRICES, strict=True):
        known = trace.presence(np.array([call]))[0] != Presence.UNSIZED
        sent = trace.wire(np.array([call]))[0]
        assert sent[0].tolist() == sizes[0]
        # without the size to itself, which its peers lack, a row is not known
        assert known.tolist() == [True, sizes[1][1] >= SMALLEST or LAST - 1 in lost]
        if known[1]:
            assert sent[1, 0] == sizes[1][0]
    assert "3 all-to-alls, from sends and receives" in trace.meta.inferred
    reduced = calls_of(trace, "all_reduce")
    assert len(reduced) == 3
