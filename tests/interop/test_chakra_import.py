"""Chakra traces: exported ones come back, and those of other programs are read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moetraffic.errors import TraceError
from moetraffic.interop import ImportOptions, import_files
from moetraffic.interop.write import ExportOptions, export_trace
from moetraffic.interop.write.chakra import content, delimited, number, text
from moetraffic.trace import ALL_TO_ALL, Group, Trace

FEW = range(1, 3)


def test_messages_of_an_exported_trace_are_its_all_to_alls(
    captured: Path, tmp_path: Path
) -> None:
    """A file names no iteration and layer, but has all calls of a rank in order."""
    with Trace.open(captured) as trace:
        options = ExportOptions(iterations=FEW)
        export_trace(trace, tmp_path / "c", "chakra", options=options)
        found, merged = import_files([tmp_path / "c"])
        assert found == "chakra"
        assert (merged.missing, merged.contradictions) == ((), ())
        back = merged.trace
        calls = trace.find(operation=ALL_TO_ALL, iterations=FEW)
        sent = trace.wire(calls)[np.argsort(np.argsort(trace.order(0))[calls])]
        sent = sent * ~np.eye(trace.meta.world, dtype=bool)
        again = [at for at in back.order(0) if back.square[back.occurrences.site[at]]]
        assert np.array_equal(back.wire(np.array(again)), sent)
        assert "40 all-to-alls, from sends and receives" in back.meta.inferred


def attributes(**told: int | str) -> bytes:
    """AttributeProtos, sizes as int64, ranks as int32, names as strings."""
    kinds = {"comm_src": 7, "comm_dst": 7, "comm_tag": 7, "pg_name": 29}
    return b"".join(
        content(
            10,
            text(1, name)
            + (
                text(29, value)
                if isinstance(value, str)
                else number(kinds.get(name, 9), value)
            ),
        )
        for name, value in told.items()
    )


def node(kind: int, name: str, at: int, **told: int | str) -> bytes:
    return delimited(
        number(1, at)
        + text(2, name)
        + number(3, kind)
        + number(6, 1000 + at)
        + number(7, 5)
        + attributes(**told)
    )


def foreign(folder: Path, rank: int, *, groups: bool = True) -> Path:
    """A trace as Chakra's converter writes it: operators and kernels, no names."""
    metadata = content(2, text(1, "schema") + text(29, "1.0.3"))
    data = delimited(metadata) + b"".join(
        [
            node(4, "aten::add", 1),
            node(7, "c10d::allreduce_", 2, is_cpu_op=1),
            node(7, "ncclAllReduce", 3, comm_type=0, comm_size=4096, pg_name="7"),
            node(7, "ncclAllToAll", 4, comm_type=6, comm_size=512),
            node(5, "send", 5, comm_size=77, comm_src=0, comm_dst=1, comm_tag=3)
            if rank == 0
            else node(6, "recv", 5, comm_size=77, comm_src=0, comm_dst=1, comm_tag=3),
        ]
    )
    path = folder / f"workload.{rank}.et"
    path.write_bytes(data)
    if groups:
        (folder / "comm_group.json").write_text(json.dumps({"7": [1, 0]}))
    return path


def test_traces_of_other_programs_are_read(tmp_path: Path) -> None:
    paths = [foreign(tmp_path, rank) for rank in (0, 1)]
    found, merged = import_files(paths)
    assert found == "chakra"
    assert merged.contradictions == ()
    trace = merged.trace
    volumes = {}
    for at, site in enumerate(trace.sites):
        of = np.flatnonzero(trace.occurrences.site == at)
        known = trace.present(of).all()
        volumes[site.operation] = trace.volume(of)[0].tolist() if known else None
    assert volumes == {
        "all_reduce": [4096, 4096],
        ALL_TO_ALL: None,  # one size, of unknown parts
        "send_recv": [77, 77],
    }
    assert Group(kind="other", ranks=(1, 0)) in trace.groups
    assert {s.phase for s in trace.sites} == {""}
    assert "2 calls have unknown byte counts" in merged.missing
    _, merged = import_files(paths, options=ImportOptions(ranks=4))
    assert merged.trace.meta.world == 4
    with pytest.raises(TraceError, match="of 2 ranks, but --ranks is 1: raise it"):
        import_files(paths, options=ImportOptions(ranks=1))
    (tmp_path / "comm_group.json").unlink()
    _, merged = import_files(paths)
    assert "all_reduce on a group that no JSON file of groups" in (
        merged.trace.meta.missing
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda data: data[:-3], "it ends within a message"),
        (lambda data: data + b"\xff" * 12, "a message has more than 10 bytes"),
        (lambda data: data + b"\x02\x0b\x00", "its message 7 is no Chakra node"),
        (lambda data: data + b"\x03\x12\x7fa", "its message 7 is no Chakra node"),
        (lambda data: data[:19], "has no collective that can be imported"),
    ],
)
def test_damaged_traces_are_one_sentence(
    tmp_path: Path, change: Any, said: str
) -> None:
    path = foreign(tmp_path, 0)
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(TraceError, match=said):
        import_files([path], format="chakra")


def test_a_trace_without_a_rank_in_its_name_is_refused(tmp_path: Path) -> None:
    path = foreign(tmp_path, 0).rename(tmp_path / "workload.et")
    with pytest.raises(TraceError, match=r"its rank: name it like run\.3\.et"):
        import_files([path])
