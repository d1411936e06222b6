"""Timelines and rank programs, read as their consumers read them."""

from __future__ import annotations

import gzip
import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moetraffic.data import path
from moetraffic.errors import TraceError
from moetraffic.interop import import_files
from moetraffic.interop.write import ExportOptions, export_trace
from moetraffic.interop.write.chakra import varint
from moetraffic.trace import ALL_TO_ALL, ROUTING, UNKNOWN_TIME, Trace

GOLDEN = path("golden.h5")
SOME = range(4, 6)


@pytest.fixture(params=["golden", "captured"])
def trace(request: pytest.FixtureRequest) -> Iterator[Trace]:
    """2 ranks that pad and drop; 4 ranks without drops, and a group of all ranks."""
    file = GOLDEN
    if request.param == "captured":
        file = request.getfixturevalue("captured")
    with Trace.open(file) as opened:
        yield opened


def called(trace: Trace, iterations: range = SOME) -> Any:
    """Occurrences of all calls of training."""
    found = trace.find(iterations=iterations)
    routes = [
        trace.sites[s].operation == ROUTING for s in trace.occurrences.site[found]
    ]
    return found[~np.array(routes)]


def total_sent(trace: Trace, iterations: range = SOME) -> Any:
    """``[R, R]`` bytes of all all-to-alls."""
    total = np.zeros((trace.meta.world,) * 2, np.int64)
    found = trace.find(operation=ALL_TO_ALL, iterations=iterations)
    for matrix, ranks in zip(trace.wire(found), trace.members(found), strict=True):
        total[np.ix_(ranks, ranks)] += matrix
    return total


# ---- Perfetto ---------------------------------------------------------------------


def timeline(folder: Path, trace: Trace, name: str = "t.json") -> list[dict[str, Any]]:
    options = ExportOptions(iterations=SOME)
    done = export_trace(trace, folder / name, "perfetto", options=options)
    raw = done.files[0].read_bytes()
    told = json.loads(gzip.decompress(raw) if name.endswith(".gz") else raw)
    events: list[dict[str, Any]] = told["traceEvents"]
    return events


def test_every_call_of_every_rank_is_in_the_timeline(
    trace: Trace, tmp_path: Path
) -> None:
    events = timeline(tmp_path, trace)
    slices = [e for e in events if e["ph"] == "X" and e["cat"] != "step"]
    found = called(trace)
    assert len(slices) == sum(trace.size(o) for o in found.tolist())
    begins = []
    for width in {trace.size(o) for o in found.tolist()}:
        of = np.array([o for o in found.tolist() if trace.size(o) == width])
        issue, _, end = trace.times(of)
        begins += list(zip(issue.ravel(), end.ravel(), strict=True))
    base = min(int(e["ts"] * 1000) for e in events if e["ph"] == "X")
    assert base == 0
    first = min(b for b, _ in begins)
    mine = min(e["ts"] for e in slices)
    want = sorted((int(b) - int(first), int(e) - int(b)) for b, e in begins)
    read = sorted(
        (round((e["ts"] - mine) * 1000), round(e["dur"] * 1000)) for e in slices
    )
    assert read == want  # exact nanoseconds
    total = total_sent(trace)
    sent: Counter[int] = Counter()
    received: Counter[int] = Counter()
    for event in slices:
        if event["cat"].startswith(ALL_TO_ALL):
            sent[event["pid"]] += event["args"]["bytes to others"]
            received[event["pid"]] += event["args"]["bytes from others"]
    own = total.diagonal()
    assert [sent[r] for r in range(len(own))] == (total.sum(axis=1) - own).tolist()
    assert [received[r] for r in range(len(own))] == (total.sum(axis=0) - own).tolist()


def test_slices_of_a_thread_nest_and_counters_return_to_zero(
    trace: Trace, tmp_path: Path
) -> None:
    events = timeline(tmp_path, trace)
    threads = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            threads[event["pid"], event["tid"]].append(event)
    for slices in threads.values():
        slices.sort(key=lambda e: e["ts"])
        for one, other in pairwise(slices):
            assert one["ts"] + one["dur"] <= other["ts"] + 1e-3
    named = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    assert set(threads) <= named
    counters = defaultdict(list)
    for event in events:
        if event["ph"] == "C":
            (value,) = event["args"].values()
            counters[event["pid"], event["name"]].append((event["ts"], value))
    for rank in range(trace.meta.world):
        on = sorted(counters[rank, "on the wire"])
        assert on[-1][1] == 0
        assert max(value for _, value in on) >= 1
        assert min(value for _, value in on) == 0
        assert len({when for when, _ in on}) == len(on)
        rates = sorted(counters[rank, "sending"])
        assert rates[-1][1] == 0
        # what was sent while on is the area below the counter, in bytes
        area = sum((b[0] - a[0]) * 1000 * a[1] for a, b in pairwise(rates))
        told = sum(
            e["args"]["bytes to others"]
            for (pid, tid), slices in threads.items()
            for e in slices
            if pid == rank and tid
        )
        assert 0.98 * told < area < 1.02 * told
        assert len(counters[rank, "loss"]) == len(SOME)


def test_a_packed_timeline_is_the_same(tmp_path: Path) -> None:
    with Trace.open(GOLDEN) as trace:
        assert timeline(tmp_path, trace) == timeline(tmp_path, trace, "t.json.gz")


def test_a_timeline_needs_times(tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    table.write_text("iteration,layer,phase,source,destination,bytes\n0,0,,0,1,5\n")
    _, merged = import_files([table])
    with pytest.raises(TraceError, match="no call that fits has any"):
        export_trace(merged.trace, tmp_path / "t.json", "perfetto")


# ---- Chakra -----------------------------------------------------------------------


def fields(data: bytes) -> list[tuple[int, int | bytes]]:
    """The fields of a message: the wire format read, not written."""
    at, found = 0, []

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(data):
        key = number()
        value: int | bytes = number()
        if key & 7 == 2:
            at, value = at + int(value), data[at : at + int(value)]
        else:
            assert key & 7 == 0
        found.append((key >> 3, value))
    assert at == len(data)
    return found


def messages(data: bytes) -> list[bytes]:
    """decodeMessage of protolib.py: a varint and so many bytes."""
    found, at = [], 0
    while at < len(data):
        size = shift = 0
        while True:
            byte = data[at]
            at += 1
            size |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        found.append(data[at : at + size])
        assert len(found[-1]) == size
        at += size
    return found


VALUES = {7: "int32", 9: "int64", 27: "bool", 29: "string"}


def node(data: bytes) -> dict[str, Any]:
    told: dict[str, Any] = {"deps": [], "duration": 0}
    for number, value in fields(data):
        if number == 10:
            assert isinstance(value, bytes)
            (_, name), (kind, content) = fields(value)
            assert isinstance(name, bytes)
            told[name.decode()] = (VALUES[kind], content)
        elif number == 5:
            assert isinstance(value, bytes)
            rest = value
            while rest:
                length = next(n for n, b in enumerate(rest) if b < 0x80) + 1
                number = sum((b & 0x7F) << 7 * n for n, b in enumerate(rest[:length]))
                assert varint(number) == rest[:length]
                told["deps"].append(number)
                rest = rest[length:]
        else:
            told[{1: "id", 2: "name", 3: "type", 6: "start", 7: "duration"}[number]] = (
                value
            )
    return told


def test_chakra_sends_meet_receives_and_dependencies_run(
    trace: Trace, tmp_path: Path
) -> None:
    done = export_trace(
        trace, tmp_path / "c", "chakra", options=ExportOptions(iterations=SOME)
    )
    world = trace.meta.world
    groups = json.loads((tmp_path / "c" / "comm_group.json").read_text())
    assert "0" not in groups
    assert len(done.files) == world + 1
    total = np.zeros((world, world), np.int64)
    sends, receives = Counter[Any](), Counter[Any]()
    for rank in range(world):
        head, *rest = messages((tmp_path / "c" / f"run.{rank}.et").read_bytes())
        assert fields(head) == [(1, b"0.0.4")]
        nodes = [node(n) for n in rest]
        done_before: set[int] = set()
        for one in nodes:  # each waits for nodes that stand before it
            assert set(one["deps"]) <= done_before
            done_before.add(one["id"])
        assert len(done_before) == len(nodes)
        for one in nodes:
            if one["type"] == 4:
                assert one["is_cpu_op"] == ("bool", 1)
                continue
            assert one["is_cpu_op"] == ("bool", 0)
            (kind, size) = one["comm_size"]
            assert kind == "int64"
            if one["type"] == 7:
                assert one["comm_type"] == ("int64", 0)  # all-reduces, here
                continue
            ends = [one[f"comm_{e}"] for e in ("src", "dst", "tag")]
            assert {kind for kind, _ in ends} == {"int32"}
            source, destination, tag = (value for _, value in ends)
            which = sends if one["type"] == 5 else receives
            which[source, destination, tag, size] += 1
            assert rank == (source if one["type"] == 5 else destination)
            if one["type"] == 5:
                total[source, destination] += size
    assert sends == receives
    assert set(sends.values()) == {1}
    want = total_sent(trace)
    np.fill_diagonal(want, 0)
    assert (total == want).all()


def test_chakra_computes_as_long_as_the_rank_did(tmp_path: Path) -> None:
    with Trace.open(GOLDEN) as trace:
        lengths = {}
        for name, options in {
            "captured": ExportOptions(iterations=SOME),
            "asap": ExportOptions(iterations=SOME, pace="asap"),
            "spaced": ExportOptions(iterations=SOME, every_ns=30_000),
        }.items():
            export_trace(trace, tmp_path / name, "chakra", options=options)
            data = (tmp_path / name / "run.1.et").read_bytes()
            nodes = [node(n) for n in messages(data)[1:]]
            lengths[name] = [n["duration"] for n in nodes if n["type"] == 4]
        assert set(lengths["asap"]) == {0}
        assert set(lengths["spaced"]) == {30}
        order = [o for o in trace.order(1).tolist() if o in set(called(trace).tolist())]
        issue, _, end = trace.times(np.array(order))
        member = 1
        gaps = (issue[1:, member] - end[:-1, member]).clip(0)
        assert lengths["captured"] == [0, *((gaps + 500) // 1000).tolist()]
        assert UNKNOWN_TIME not in issue


def test_chakra_is_what_protobuf_reads(tmp_path: Path) -> None:
    pytest.importorskip("google.protobuf", reason="protobuf is not installed")
    from google.protobuf import (  # type: ignore[import-not-found,import-untyped]
        descriptor_pb2,
        descriptor_pool,
        message_factory,
    )

    schema = descriptor_pb2.FileDescriptorProto(
        name="et.proto", package="ChakraProtoMsg", syntax="proto3"
    )
    kinds = descriptor_pb2.FieldDescriptorProto

    def add(name: str, *told: tuple[str, int, int, int, str]) -> None:
        message = schema.message_type.add(name=name)
        for field, number, kind, label, of in told:
            more = {"type_name": of} if of else {}
            message.field.add(name=field, number=number, type=kind, label=label, **more)

    text, u64 = kinds.TYPE_STRING, kinds.TYPE_UINT64
    add(
        "AttributeProto",
        ("name", 1, text, 1, ""),
        ("int32_val", 7, kinds.TYPE_INT32, 1, ""),
        ("int64_val", 9, kinds.TYPE_INT64, 1, ""),
        ("bool_val", 27, kinds.TYPE_BOOL, 1, ""),
        ("string_val", 29, text, 1, ""),
    )
    add(
        "Node",
        ("id", 1, u64, 1, ""),
        ("name", 2, text, 1, ""),
        ("type", 3, kinds.TYPE_INT32, 1, ""),
        ("data_deps", 5, u64, 3, ""),
        ("start_time_micros", 6, u64, 1, ""),
        ("duration_micros", 7, u64, 1, ""),
        ("attr", 10, kinds.TYPE_MESSAGE, 3, ".ChakraProtoMsg.AttributeProto"),
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(schema)
    made = message_factory.GetMessageClass(
        pool.FindMessageTypeByName("ChakraProtoMsg.Node")
    )
    with Trace.open(GOLDEN) as trace:
        export_trace(
            trace, tmp_path / "c", "chakra", options=ExportOptions(iterations=SOME)
        )
    for data in messages((tmp_path / "c" / "run.0.et").read_bytes())[1:]:
        read, mine = made.FromString(data), node(data)
        assert (read.id, read.type, list(read.data_deps)) == (
            mine["id"],
            mine["type"],
            mine["deps"],
        )
        assert read.duration_micros == mine["duration"]
        for attribute in read.attr:
            kind, value = mine[attribute.name]
            read_value = getattr(attribute, f"{kind}_val")
            assert read_value == (value.decode() if kind == "string" else value)
