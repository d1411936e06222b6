"""Dumps of torch's flight recorder: of real gloo ranks, and of NCCL's form."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moetraffic.arrays import Int64
from moetraffic.interop.read import import_files
from moetraffic.trace import ALL_TO_ALL, Trace
from moetraffic.trace.model import Presence

RUN = """
import sys, torch, torch.distributed as dist
rank, folder = int(sys.argv[1]), sys.argv[2]
dist.init_process_group(
    "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2
)
dist.all_to_all_single(torch.empty(2), torch.ones(2))
dist.all_reduce(torch.ones(10))
with open(f"{folder}/dump_rank{rank}.json", "wb") as file:
    file.write(torch._C._distributed_c10d._dump_fr_trace_json())
dist.destroy_process_group()
"""


def calls_of(trace: Trace, operation: str) -> Int64:
    """Calls of an operation; the files have no iterations."""
    sites = [n for n, site in enumerate(trace.sites) if site.operation == operation]
    return np.flatnonzero(np.isin(trace.occurrences.site, sites))


@pytest.mark.slow
def test_dumps_of_gloo_have_calls_without_splits(tmp_path: Path) -> None:
    import torch

    if not hasattr(torch._C._distributed_c10d, "_dump_fr_trace_json"):
        pytest.skip("this torch has no flight recorder of gloo")
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RUN, str(rank), str(tmp_path)],
            env={"TORCH_FR_BUFFER_SIZE": "100", "GLOO_SOCKET_IFNAME": "lo"},
        )
        for rank in (0, 1)
    ]
    assert [process.wait(100) for process in ranks] == [0, 0]
    found, merged = import_files(sorted(tmp_path.glob("*.json")))
    assert found == "flight-recorder"
    trace = merged.trace
    exchanged, reduced = (
        calls_of(trace, ALL_TO_ALL),
        calls_of(trace, "all_reduce"),
    )
    assert (trace.presence(exchanged) == Presence.UNSIZED).all()
    assert trace.volume(reduced).tolist() == [[40, 40]]
    assert (trace.times(reduced, own_clock=True)[0] > 0).all()


SIZES = [[1, 5, 6], [7, 1, 8], [9, 10, 1]]


def dump(path: Path, rank: int, calls: range) -> None:
    """Write a dump of NCCL, of all-to-alls by lists of tensors and by messages."""
    entries: list[dict[str, Any]] = []

    def add(name: str, sent: list[int], received: list[int], number: int) -> None:
        entry: dict[str, Any] = {
            "process_group": ["7", "EXPERT_MODEL_PARALLEL_GROUP"],
            "profiling_name": f"nccl:{name}",
            "collective_seq_id": number,
        }
        for end, sizes in (("input", sent), ("output", received)):
            entry[f"{end}_sizes"] = [[size, 4] for size in sizes]
            entry[f"{end}_dtypes"] = ["BFloat16"] * len(sizes)
        entries.append(entry)

    for number in calls:
        sent, received = SIZES[rank], [row[rank] for row in SIZES]
        for peer in {0, 1, 2} - {rank}:
            add(f"send {rank}->{peer}", sent[peer:][:1], sent[peer:][:1], 0)
            add(f"recv {rank}<-{peer}", received[peer:][:1], received[peer:][:1], 0)
        add("all_to_all", sent, received, number)
    config = {"7": {"name": "7", "desc": "", "ranks": "[0, 1, 2]"}}
    content = {"version": "2.4", "pg_config": config, "entries": entries}
    path.write_text(json.dumps(content))


def test_parts_are_the_tensors_of_a_list_and_the_messages_of_a_round(
    tmp_path: Path,
) -> None:
    for rank in range(3):
        dump(tmp_path / f"nccl_trace_rank_{rank}", rank, range(1, 3))
    merged = import_files(sorted(tmp_path.iterdir()))[1]
    assert merged.contradictions == ()
    trace = merged.trace
    assert {group.kind for group in trace.groups} == {"ep"}
    matrices = [
        trace.wire(np.array([c]))[0].tolist() for c in calls_of(trace, ALL_TO_ALL)
    ]
    listed = [[8 * size for size in row] for row in SIZES]
    joined = (np.array(listed) * (1 - np.eye(3, dtype=int))).tolist()
    assert sorted(matrices) == sorted([listed, joined] * 2)
