"""Files that are large, cut, damaged or made to deceive end in one sentence."""

from __future__ import annotations

import copy
import gzip
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moetraffic.errors import MoetrafficError, TraceError
from moetraffic.interop import import_files, json_reader
from moetraffic.interop.json_reader import JsonStream, integers, json_lines

PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=10,
)


def streamed(text: str) -> list[tuple[str, Any]]:
    return list(JsonStream(Path("x"), io.StringIO(text)).members("nodes"))


@given(
    before=PLAIN,
    elements=st.lists(PLAIN, max_size=4),
    indent=st.sampled_from([None, 2]),
)
def test_a_document_in_pieces_is_the_document(
    before: Any, elements: Any, indent: int | None
) -> None:
    text = json.dumps({"a": before, "nodes": elements, "b": 12}, indent=indent)
    expected = [("a", before), *(("nodes", e) for e in elements), ("b", 12)]
    piece = json_reader.PIECE
    try:
        for json_reader.PIECE in (1, 7):
            assert streamed(text) == expected
    finally:
        json_reader.PIECE = piece
    assert streamed(json.dumps(elements)) == [("nodes", e) for e in elements]


def test_objects_follow_each_other_on_a_line_or_several(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"a": 1}{"a":\n 2}\n\n {"a": 3}\n'))
    assert [o["a"] for o in json_lines(path)] == [1, 2, 3]


def test_lists_are_numbers_or_no_lists() -> None:
    assert integers("[3, 1, ...]") == ([3, 1], True)
    assert integers("[]") == ([], False)
    assert integers([4, 5]) == ([4, 5], False)
    for none in ("", "3", "[1, x]", "[-1]", [1.5], [True], {"a": 1}, None, [10**30]):
        assert integers(none) is None


HOSTILE = {
    "empty": b"",
    "nested": b'{"traceEvents": ' + b"[" * 200_000,
    "cut": b'{"traceEvents": [{"name": "x"',
    "no events": b'{"schemaVersion": 1}',
    "text": b'{"traceEvents": [nonsense]}',
    "digits": b'{"traceEvents": [' + b"9" * 10_000 + b"]}",
    "bytes": b'{"traceEvents": [\xff\xfe\x00]}',
    "gzip": gzip.compress(b'{"traceEvents": []}')[:-9],
    "deflate": b"\x1f\x8b\x08\x00" + bytes(60),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_damaged_file_is_one_sentence(tmp_path: Path, what: str) -> None:
    path = tmp_path / "rank0.json"
    path.write_bytes(HOSTILE[what])
    with pytest.raises(TraceError) as raised:
        import_files([path], format="profiler")
    assert "rank0.json" in str(raised.value)
    assert len(str(raised.value)) < 400


VALUES = [
    *(None, True, -1, 0, 3, 2**31, 2**62, 2**70, -(2**63), 1e300, 0.5),
    *(
        "",
        "x",
        "[",
        "[1, ...]",
        "[0, 0]",
        "[1, 2, 3, 4, 5, 6, 7, 8, 9]",
        "[99999999999]",
    ),
    *([], [[]], [1], [[1, 2], [3]], {}, {"a": 1}, "all_to_allv", "Float", "\ud800"),
]


def everywhere(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield at
    items = value.items() if isinstance(value, dict) else ()
    items = enumerate(value) if isinstance(value, list) else items
    for key, inner in items:
        yield from everywhere(inner, (*at, key))


def mutated(value: Any, seed: np.random.Generator) -> Any:
    """The value with one to three parts replaced or gone."""
    value = copy.deepcopy(value)
    for _ in range(seed.integers(1, 4)):
        places = [p for p in everywhere(value) if p]
        if not places:
            break
        *way, last = places[seed.integers(len(places))]
        holder = value
        for key in way:
            holder = holder[key]
        if seed.random() < 0.2:
            del holder[last]
        else:
            holder[last] = copy.deepcopy(VALUES[seed.integers(len(VALUES))])
    return value


PROFILE = {
    "distributedInfo": {
        **{"rank": 0, "world_size": 2, "backend": "nccl", "pg_count": 1},
        "pg_config": [{"pg_name": "0", "ranks": [0, 1], "group_size": 2}],
    },
    "baseTimeNanoseconds": 10**18,
    "traceEvents": [
        {"ph": "X", "name": name, "cat": "cpu_op", "tid": 1, "ts": ts, "dur": dur}
        | {"args": args}
        for name, ts, dur, args in (
            ("ProfilerStep#4", 1.0, 50.0, {}),
            ("MoE", 2.0, 20.0, {"Sequence number": 3, "Fwd thread id": 0}),
            (
                *("c10d::alltoall_base_", 3.0, 9.0),
                {
                    "Input Dims": [[4, 2], [3, 2], [], [], []],
                    "Input type": ["float", "float", "", "ScalarList", "ScalarList"],
                    "Concrete Inputs": ["", "", "", "[1, 3]", "[1, 2]"],
                    "Record function id": 5,
                },
            ),
            (
                *("record_param_comms", 4.0, 2.0),
                {
                    **{"Collective name": "all_to_allv", "dtype": "Float", "Seq": 2},
                    **{"In msg nelems": 6, "Out msg nelems": 8, "Group size": 2},
                    **{"In split size": "[1, 2]", "Out split size": "[1, 3]"},
                    **{"Process Group Name": "0", "Process Group Ranks": "[0, 1]"},
                },
            ),
            ("gloo:all_to_all", 5.0, 1.0, {"Record function id": 6}),
            ("c10d::send", 30.0, 9.0, {"Concrete Inputs": ["", "", "1", "0"]}),
        )
    ],
}
OBSERVED = {
    "schema": "1.1.1",
    "nodes": [
        {
            **{"id": 2, "ctrl_deps": 1, "name": "## process_group:init ##"},
            "inputs": {"values": ['[{"pg_name": "0", "ranks": [], "group_size": 2}]']},
            "attrs": [],
        },
        {
            **{"id": 4, "ctrl_deps": 3, "name": "c10d::alltoall_base_"},
            "inputs": {
                "values": [
                    *([1, 2, 0, 8, 4, "cpu"], [1, 2, 0, 6, 4, "cpu"], "<Object>"),
                    *([1, 3], [1, 2]),
                ],
                "shapes": [[4, 2], [3, 2], [], [], []],
                "types": ["Tensor(float)", "Tensor(float)", "Object", "", ""],
            },
            "attrs": [{"name": "seq_id", "value": 3}, {"name": "tid", "value": 1}],
        },
        {"id": 3, "ctrl_deps": 1, "name": "MoE", "attrs": []},
        {
            **{"id": 6, "parent": 1, "name": "record_param_comms", "seq_id": 1},
            "inputs": [[[1, 2, 0, 6, 4, "cpu"]], 5, 0, "all_to_all", [1, 2], [1, 3], 2],
            "input_shapes": [[[3, 2]], [], [], [], [], [], []],
            "input_types": ["GenericList[Tensor(float)]", "Int", "Int", "String"],
        },
    ],
}
ROUTED = {
    **{"step": 0, "block": "decoder", "layer": 1, "rank": 0, "num_tokens": 2},
    **{"topk": 2, "top_indices": [[0, 1], [2, 3]], "stage": "pre_dispatch"},
}
INSPECTED = {
    "header": {"id": "0xa", "rank": 0, "n_ranks": 2},
    "metadata": {"hostname": "h", "pid": 3},
    "p2p_perf": {
        **{"p2p": "Send", "p2p_peer": 1, "p2p_msg_size_bytes": 9000, "p2p_sn": 1},
        "event_trace_ts": {"p2p_start_ts": 5, "kernel_events": [{}]},
    },
}


@pytest.mark.parametrize(
    ("format", "value"),
    [
        ("profiler", PROFILE),
        ("execution-trace", OBSERVED),
        ("megatron", ROUTED),
        ("nccl-inspector", INSPECTED),
    ],
)
def test_any_value_anywhere_is_taken_or_refused(
    tmp_path: Path, format: str, value: Any
) -> None:
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps(value))
    import_files([path], format=format)
    seed = np.random.default_rng(7)
    refused = []
    for number in range(80):
        path.write_text(json.dumps(mutated(value, seed)))
        try:
            _, merged = import_files([path], format=format)
            if number % 8 == 0:
                merged.trace.save(tmp_path / "run.h5", force=True)
        except MoetrafficError as error:
            refused.append(str(error))
    assert len(refused) < 80
    assert max(map(len, refused)) < 700
