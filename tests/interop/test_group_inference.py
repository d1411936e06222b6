"""Groups of calls in files without groups: inferred with a reason, or unknown.

The files have the shape of those in PARAM (execution traces of DLRM, schema 1.0.1) and
in HolisticTraceAnalysis (profiles of 8, 16 and 128 ranks): no process groups.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moetraffic.data import path as data_path
from moetraffic.errors import TraceError
from moetraffic.interop import ImportOptions, import_files
from moetraffic.trace import ALL_TO_ALL, Group, Trace

SENT = np.array([[3, 1, 0], [2, 2, 2], [0, 5, 1]])  # rows between the three ranks
WORLD = Group(kind="world", ranks=(0, 1, 2))
RANKS = (0, 1, 2)


# ---- execution traces of schema 1.0.1 ---------------------------------------------


def observed(folder: Path, rank: int, splits: Any = SENT, group: int = 0) -> Path:
    """An all-to-all with splits and an all-reduce on one process group, by its address.

    With ``group``, the all-reduce is on another one.
    """
    address = 94_000_000_000_000 + rank
    sent, received = splits[rank].tolist(), splits[:, rank].tolist()
    tensors = [[1, 2, 0, sum(rows), 4, "cuda:0"] for rows in (received, sent)]

    def node(number: int, parent: int, name: str, inputs: Any, types: Any) -> Any:
        shapes = [[v[3]] if isinstance(v, list) and len(v) == 6 else [] for v in inputs]
        return {"name": name, "id": number, "parent": parent, "seq_id": -1} | {
            "inputs": inputs,
            "input_types": types,
            "input_shapes": shapes,
            "tid": 1,
            "fw_tid": 0,
        }

    floats, rows = "Tensor(float)", "GenericList[Int,Int,Int]"
    recorded = ["Int", "Int", "Int", "String"]
    nodes = [
        node(
            *(3, 1, "c10d::alltoall_base_", [*tensors, "<Object>", received, sent, -1]),
            [floats, floats, "Object", rows, rows, "Int"],
        ),
        node(
            *(4, 3, "record_param_comms"),
            [tensors[1], 147, address, rank, "all_to_allv", sent, received],
            [floats, *recorded, rows, rows],
        ),
        node(
            *(6, 1, "record_param_comms"),
            [
                *([[5, 6, 0, 100, 4, "cuda:0"]], 148, address + group, rank),
                *("allreduce", [], []),
            ],
            ["GenericList[Tensor(float)]", *recorded, rows, rows],
        ),
        node(7, 1, "record_param_comms", [147, 0, rank, "wait", [], []], recorded),
    ]
    nodes[2]["input_shapes"][0] = [[100]]
    path = folder / f"dlrm_eg_{rank}.json"
    path.write_text(json.dumps({"schema": "1.0.1", "pid": 1, "nodes": nodes}))
    return path


def bytes_of(trace: Trace) -> dict[str, Any]:
    """Bytes of the calls by operation; all have occurred once."""
    found = {}
    for number, site in enumerate(trace.sites):
        of = np.flatnonzero(trace.occurrences.site == number)
        read = trace.wire if site.operation == ALL_TO_ALL else trace.volume
        found[site.operation] = read(of)[0].tolist()
    return found


def test_splits_show_the_group_of_all_ranks(tmp_path: Path) -> None:
    _, merged = import_files([observed(tmp_path, rank) for rank in RANKS])
    trace = merged.trace
    assert (merged.missing, merged.contradictions) == ((), ())
    assert trace.groups == (WORLD,)
    assert bytes_of(trace) == {
        "all_to_all": (SENT * 4).tolist(),
        "all_reduce": [400] * 3,
    }
    assert trace.meta.world == 3
    inferred = "group of 3 calls inferred as world 0, 1, 2:"
    assert trace.meta.inferred.split("; ") == [
        "3 ranks, from the number of files, one for each rank",
        f"{inferred} the calls have a part for each rank",
        f"{inferred} other calls on this process group have a part for each rank",
    ]
    trace.save(tmp_path / "run.h5")
    with Trace.open(tmp_path / "run.h5") as opened:
        assert opened.meta.inferred == trace.meta.inferred


def test_width_of_the_splits_is_the_number_of_ranks(tmp_path: Path) -> None:
    _, merged = import_files([observed(tmp_path, rank) for rank in (0, 2)])
    assert merged.trace.groups == (WORLD,)
    assert merged.trace.meta.inferred.startswith(
        "3 ranks, from the largest group of a call, by its parts; "
    )
    assert "rank 1 recorded nothing" in merged.missing


def test_ranks_of_the_user_come_first(tmp_path: Path) -> None:
    """In 6 ranks, a call of 3 parts is of a part of them, and the other unknown."""
    paths = [observed(tmp_path, rank, group=64) for rank in RANKS]
    _, merged = import_files(paths, options=ImportOptions(ranks=6))
    trace = merged.trace
    assert trace.meta.world == 6
    assert trace.groups == (Group(kind="unknown", ranks=tuple(range(6))),)
    assert list(bytes_of(trace)) == ["all_reduce"]
    assert trace.occurrences.sequence.tolist() == [-1]
    assert trace.meta.inferred.startswith("6 ranks, from --ranks; group of 3 calls unk")
    left_out = "left out 1 all_to_all on a group of 3 ranks that the files do not list"
    assert left_out in trace.meta.missing
    with pytest.raises(TraceError, match="of 3 ranks, but --ranks is 2: raise it"):
        import_files(paths, options=ImportOptions(ranks=2))


# ---- profiles of releases without process groups ----------------------------------


def profiled(
    folder: Path,
    rank: int,
    world: int = 0,
    *,
    gathered: int = 0,
    named: bool = True,
    kernels: tuple[str, ...] = (),
) -> Path:
    """A profile with an all-to-all and an all-reduce, of which only sizes are known.

    ``gathered`` is the size of the group of a further all-gather.
    """
    nothing: list[Any] = []
    calls: list[tuple[str, str, list[Any], list[str]]] = [
        ("alltoall_base_", "all_to_all", [[6144], [6144], nothing], ["float"] * 2),
        ("allreduce_", "all_reduce", [nothing, nothing], ["TensorList", ""]),
    ]
    if gathered:
        shapes = [[64 * gathered], [64]]
        calls.append(("_allgather_base_", "_all_gather_base", shapes, ["float"] * 2))
    events: list[dict[str, Any]] = []

    def event(name: str, at: float, length: float, **more: Any) -> None:
        told = {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 5}
        events.append(told | {"ts": at, "dur": length} | more)

    for at, (operator, annotation, shapes, types) in enumerate(calls):
        begin, given = 100.0 * at, [[394_241]] if "reduce" in operator else shapes[1:2]
        if named:
            args = {"Input Dims": shapes, "Input type": types}
            event(f"c10d::{operator}", begin, 90, args=args)
        event("record_param_comms", begin + 1, 80, args={"External id": at})
        args = {"Input Dims": given, "Input type": ["float"]}
        event(f"nccl:{annotation}", begin + 2, 60, cat="user_annotation", args=args)
    event("record_param_comms", 900, 5, args={})  # a wait
    for name in kernels:
        event(name, 1000, 5, cat="kernel", tid=7)
    told = {"backend": "nccl", "rank": rank} | ({"world_size": world} if world else {})
    path = folder / f"worker{rank}.pt.trace.json"
    path.write_text(json.dumps({"distributedInfo": told, "traceEvents": events}))
    return path


def test_a_stated_world_is_the_group_of_all_calls(tmp_path: Path) -> None:
    _, merged = import_files([profiled(tmp_path, 1, 8)])
    trace = merged.trace
    assert trace.groups == (Group(kind="world", ranks=tuple(range(8))),)
    assert [s.operation for s in trace.sites] == ["all_to_all", "all_reduce"]
    assert bytes_of_rank(trace, 1) == {"all_to_all": None, "all_reduce": 394_241 * 4}
    assert trace.meta.inferred.split("; ") == [
        "8 ranks, from the files, which state it",
        "group of 2 calls inferred as world 0 to 7: the files list no group, and have "
        "no call of a part of the ranks",
    ]


def bytes_of_rank(trace: Trace, rank: int) -> dict[str, int | None]:
    """Volume of the calls of one rank; None if it is unknown."""
    found: dict[str, int | None] = {}
    for number, site in enumerate(trace.sites):
        of = np.flatnonzero(trace.occurrences.site == number)
        known = bool(trace.present(of)[0, rank])
        found[site.operation] = int(trace.volume(of)[0, rank]) if known else None
    return found


def test_calls_of_parts_leave_the_others_unknown(tmp_path: Path) -> None:
    _, merged = import_files(
        [profiled(tmp_path, rank, 16, gathered=8) for rank in (0, 1)]
    )
    trace = merged.trace
    assert trace.groups == (Group(kind="unknown", ranks=tuple(range(16))),)
    assert "group of 4 calls unknown within ranks 0 to 15" in trace.meta.inferred
    assert (
        "all_gather on a group of 8 ranks that the files do not" in trace.meta.missing
    )
    _, merged = import_files([profiled(tmp_path, 0, 8, gathered=8)])
    assert {g.kind for g in merged.trace.groups} == {"world"}


def test_golden_import_keeps_what_was_inferred() -> None:
    with Trace.open(data_path("golden-imported.h5")) as trace:
        assert trace.groups == (Group(kind="unknown", ranks=tuple(range(16))),)
        assert trace.meta.inferred == (
            "16 ranks, from the files, which state it; group of 4 calls unknown within "
            "ranks 0 to 15: the files list no group, but have calls of parts of the "
            "ranks"
        )
        assert bytes_of_rank(trace, 1) == {
            "all_to_all": None,
            "all_reduce": 394_241 * 4,
        }
    with Trace.open(data_path("golden.h5")) as trace:
        assert trace.meta.inferred == ""


def test_without_operators_annotations_name_the_calls(tmp_path: Path) -> None:
    paths = [profiled(tmp_path, rank, named=False) for rank in (0, 1)]
    _, merged = import_files(paths, options=ImportOptions(ranks=4))
    assert bytes_of_rank(merged.trace, 1)["all_reduce"] == 394_241 * 4
    _, merged = import_files(paths)
    assert merged.trace.meta.inferred.startswith("2 ranks, from the number of files")


def test_what_a_profile_has_is_said_where_it_cannot_be_read(tmp_path: Path) -> None:
    path = profiled(tmp_path, 0, named=False)
    with pytest.raises(TraceError) as raised:
        import_files([path])
    said = str(raised.value)
    assert "it has 3 record_param_comms, 1 nccl:all_to_all, 1 nccl:all_reduce" in said
    assert "in an unknown number of ranks: give --ranks" in said


KERNELS = (
    "void deep_ep::intranode::dispatch<8, 768, 8192>(int4*, float*, int)",
    "void deep_ep::intranode::combine<__nv_bfloat16, 8>(void*, float*)",
    "void at::native::vectorized_elementwise_kernel<4>(int)",
)


def test_kernels_that_send_by_themselves_are_named(tmp_path: Path) -> None:
    told = {"distributedInfo": {"rank": 0, "world_size": 8}, "traceEvents": []}
    path = profiled(tmp_path, 0, 8, kernels=KERNELS)
    _, merged = import_files([path])
    left_out = "1 kernels deep_ep::intranode::dispatch, of which a profile has neither"
    assert left_out in merged.trace.meta.missing
    read = json.loads(path.read_text())
    told["traceEvents"] = [e for e in read["traceEvents"] if e["cat"] == "kernel"]
    path.write_text(json.dumps(told))
    with pytest.raises(TraceError) as raised:
        import_files([path])
    said = str(raised.value)
    assert (
        "it has 1 deep_ep::intranode::dispatch, 1 deep_ep::intranode::combine" in said
    )
    assert "neither bytes nor destinations" in said
    told["traceEvents"] = [e for e in read["traceEvents"] if "at::native" in e["name"]]
    path.write_text(json.dumps(told))
    with pytest.raises(TraceError, match="it has no communication"):
        import_files([path])
