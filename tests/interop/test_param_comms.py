"""Rows of NCCL, which torch here cannot make: written by hand as its sources say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moetraffic.errors import TraceError
from moetraffic.interop import import_files
from moetraffic.trace import ALL_TO_ALL, UNKNOWN_TIME, Group, Trace
from moetraffic.trace.model import Presence

SENT = np.array([[3, 1], [0, 2]])  # rows between the two ranks of a group
ROW = 16 * 2  # 16 elements of bfloat16


def profile(folder: Path, rank: int, **change: Any) -> Path:
    """A profile of a rank of 4, of which 0 and 2, and 1 and 3 exchange."""
    member, ranks = rank // 2, [rank % 2, rank % 2 + 2]
    args = {
        "External id": 7,
        "Collective name": "all_to_allv",
        "dtype": "BFloat16",
        "In msg nelems": int(SENT[member].sum()) * 16,
        "Out msg nelems": int(SENT[:, member].sum()) * 16,
        "In split size": str(SENT[member].tolist()),
        "Out split size": str(SENT[:, member].tolist()),
        "Group size": 2,
        "Process Group Name": "5",
        "Process Group Description": "EXPERT_MODEL_PARALLEL_GROUP",
        "Process Group Ranks": str(ranks),
        "Seq": 11,
        **change,
    }
    args = {name: value for name, value in args.items() if value is not None}
    common = {"ph": "X", "pid": 1, "tid": 9, "dur": 5.0}
    told = {
        "schemaVersion": 1,
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": 4},
        "baseTimeNanoseconds": 10**18,
        "traceEvents": [
            {**common, "cat": "cpu_op", "name": "record_param_comms", "ts": 100.5}
            | {"args": args},
            {**common, "cat": "cpu_op", "name": "record_param_comms", "ts": 106.0}
            | {"args": {"Collective name": "wait"}},
            {
                **common,
                "cat": "kernel",
                "name": "ncclDevKernel_SendRecv(x)",
                "ts": 200.0,
            }
            | {"tid": 7, "dur": 30.0, "args": {"External id": 7, "correlation": 3}},
        ],
    }
    path = folder / f"worker{rank}.pt.trace.json"
    path.write_text(json.dumps(told))
    return path


def test_splits_are_rows_and_elements_bytes(tmp_path: Path) -> None:
    _, merged = import_files([profile(tmp_path, rank) for rank in range(4)])
    assert merged.contradictions == ()
    trace = merged.trace
    assert set(trace.groups) == {
        Group(kind="ep", ranks=(0, 2)),
        Group(kind="ep", ranks=(1, 3)),
    }
    of = np.arange(len(trace.occurrences))
    assert (trace.wire(of) == SENT * ROW).all()
    assert {(s.dtype, s.row_bytes) for s in trace.sites} == {("bfloat16", ROW)}
    assert trace.occurrences.sequence.tolist() == [11, 11]
    issue, start, end = trace.times(of, own_clock=True)
    assert (issue == 10**18 + 100_500).all()
    assert (start == 10**18 + 200_000).all()
    assert (end == 10**18 + 230_000).all()


@pytest.mark.parametrize("told", [None, "[]"])
def test_absent_splits_are_not_even(tmp_path: Path, told: str | None) -> None:
    absent = {"In split size": told, "Out split size": told}
    _, merged = import_files([profile(tmp_path, rank, **absent) for rank in range(4)])
    trace = merged.trace
    assert not trace.present(np.arange(2)).any()
    issue, _, _ = trace.times(np.arange(2), own_clock=True)
    assert (issue != UNKNOWN_TIME).all()  # that it called is known
    assert "4 calls have unknown byte counts" in merged.missing


def test_elements_that_are_no_whole_rows_are_a_contradiction(tmp_path: Path) -> None:
    odd = {"In msg nelems": 63, "Out msg nelems": 49}
    _, merged = import_files([profile(tmp_path, 0, **odd), profile(tmp_path, 2)])
    assert not (merged.trace.presence(np.arange(1)) == Presence.RECOVERED)[0, 1]
    wrong = {"In msg nelems": 80}
    _, merged = import_files([profile(tmp_path, 0, **wrong), profile(tmp_path, 2)])
    (said,) = (c for c in merged.contradictions if "buffer has" in c)
    assert "worker0.pt.trace.json: call 0 of rank 0 (all_to_all)" in said


def test_a_rank_that_exchanged_nothing_takes_part(tmp_path: Path) -> None:
    nothing = {
        **{"In msg nelems": 0, "Out msg nelems": 0},
        **{"In split size": "[0, 0]", "Out split size": "[0, 0]"},
    }
    alone = {"In msg nelems": 48, "In split size": "[3, 0]"}
    alone |= {"Out msg nelems": 48, "Out split size": "[3, 0]"}
    paths = [profile(tmp_path, 0, **alone), profile(tmp_path, 2, **nothing)]
    _, merged = import_files(paths)
    assert merged.contradictions == ()
    assert merged.trace.wire(np.arange(1)).tolist() == [[[3 * ROW, 0], [0, 0]]]
    assert merged.trace.present(np.arange(1)).all()


def test_files_of_two_runs_are_refused(tmp_path: Path) -> None:
    first, second = profile(tmp_path, 0), profile(tmp_path, 2)
    told = json.loads(second.read_text())
    told["distributedInfo"]["world_size"] = 8
    second.write_text(json.dumps(told))
    with pytest.raises(TraceError, match=r"is of 4 ranks and .* of 8"):
        import_files([first, second])
    again = tmp_path / "again.json"
    again.write_bytes(first.read_bytes())
    with pytest.raises(TraceError, match="are both of rank 0"):
        import_files([first, again])


# ---- execution traces -------------------------------------------------------------

GROUPS = [
    {"pg_name": "0", "pg_desc": "default_pg", "ranks": [], "group_size": 2},
    {"pg_name": "3", "pg_desc": "mesh_ep", "ranks": [0, 1], "group_size": 2},
]


def old(folder: Path, rank: int, *, sequenced: bool) -> Path:
    """Schema 1.0.1: inputs in the node, which a later release put one place on."""
    tensor = [1, 2, 0, int(SENT[rank].sum()) * 16, 2, "cuda:0"]
    inputs = [
        *([[tensor]], 12345678901234, rank),
        *("all_to_allv", SENT[rank].tolist(), SENT[:, rank].tolist(), 2),
    ]
    types = ["GenericList[Tensor(c10::BFloat16)]", "Int", "Int", "String"]
    types += ["GenericList[Int,Int]", "GenericList[Int,Int]", "Int"]
    inputs[0] = inputs[0][0]
    if sequenced:
        inputs.insert(1, 11)
        types.insert(1, "Int")
    base = {"rf_id": 1, "fw_parent": 0, "scope": 0, "tid": 1, "fw_tid": 0}
    nodes = [
        {**base, "name": "## process_group:init ##", "id": 2, "parent": 1, "seq_id": -1}
        | {"inputs": [json.dumps(GROUPS[:1])], "input_shapes": [[]]}
        | {"input_types": ["String"]},
        {**base, "name": "record_param_comms", "id": 5, "parent": 4, "seq_id": -1}
        | {"inputs": inputs, "input_types": types}
        | {"input_shapes": [[[tensor[3]]], *[[]] * (len(inputs) - 1)]},
        {**base, "name": "MoE", "id": 4, "parent": 3, "seq_id": 21, "inputs": []},
        {**base, "name": "MoEBackward", "id": 3, "parent": 1, "seq_id": 20}
        | {"fw_tid": 1, "inputs": []},
    ]
    path = folder / f"et_{rank}.json"
    path.write_text(json.dumps({"schema": "1.0.1", "pid": 1, "nodes": nodes}))
    return path


@pytest.mark.parametrize("sequenced", [False, True])
def test_schema_1_0_1_is_read_by_types(tmp_path: Path, sequenced: bool) -> None:
    paths = [old(tmp_path, rank, sequenced=sequenced) for rank in (0, 1)]
    found, merged = import_files(paths)
    assert found == "execution-trace"
    assert (merged.contradictions, merged.missing) == ((), ())
    (site,) = merged.trace.sites
    assert (site.dtype, site.row_bytes, site.direction) == (
        *("bfloat16", ROW),
        "recompute",  # a forward function within a backward one
    )
    assert merged.trace.wire(np.arange(1)).tolist() == [(SENT * ROW).tolist()]


def new(folder: Path, rank: int) -> Path:
    """Schema 1.0.3 on: attributes, and the operator around with its whole lists."""
    shapes = [[int(SENT[:, rank].sum()), 16], [int(SENT[rank].sum()), 16]]
    tensors = [[1, 2, 0, n * 16, 2, "cuda:0"] for n, _ in shapes]
    attributes = {
        **{"seq_id": -1, "tid": 1, "fw_tid": 0},
        **{"collective_name": "all_to_allv", "dtype": "BFloat16", "pg_name": "3"},
        **{"in_msg_nelems": shapes[1][0] * 16, "out_msg_nelems": shapes[0][0] * 16},
        **{"in_split_size": str(SENT[rank].tolist()), "pg_size": 2},
        "out_split_size": str(SENT[:, rank].tolist()),
    }

    def node(number: int, parent: int, name: str, inputs: Any, about: Any) -> Any:
        attrs = [{"name": n, "type": "?", "value": v} for n, v in about.items()]
        return {"id": number, "name": name, "ctrl_deps": parent, "inputs": inputs} | {
            "attrs": attrs
        }

    plain = {"seq_id": -1, "tid": 1, "fw_tid": 0}
    nothing: dict[str, Any] = {"values": [], "shapes": [], "types": []}
    nodes = [
        node(2, 1, "## process_group:init ##", {"values": [json.dumps(GROUPS)]}, plain),
        node(6, 5, "record_param_comms", nothing, attributes),
        node(
            5,
            1,
            "c10d::alltoall_base_",
            {
                "values": [*tensors, "<Object>", *(SENT.T[rank], SENT[rank])],
                "shapes": [*shapes, [], [], []],
                "types": ["Tensor(c10::BFloat16)"] * 2,
            },
            plain,
        ),
    ]
    told = {"schema": "1.0.3-chakra.0.0.4", "nodes": nodes}
    path = folder / f"rank-{rank}.json"
    path.write_text(json.dumps(told, default=lambda v: v.tolist()))
    return path


def test_schema_1_0_3_names_its_group(tmp_path: Path) -> None:
    _, merged = import_files([new(tmp_path, rank) for rank in (0, 1)])
    trace: Trace = merged.trace
    assert trace.groups == (Group(kind="ep", ranks=(0, 1)),)
    (site,) = trace.sites
    assert (site.operation, site.row_bytes) == (ALL_TO_ALL, ROW)
    assert trace.wire(np.arange(1)).tolist() == [(SENT * ROW).tolist()]


def test_an_execution_trace_that_tells_no_rank_is_refused(tmp_path: Path) -> None:
    path = new(tmp_path, 0).rename(tmp_path / "observed.json")
    with pytest.raises(TraceError, match="contains its rank: name it like rank3"):
        import_files([path])
