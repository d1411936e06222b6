"""Files that are large, cut, damaged or made to deceive end in one sentence."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moetraffic.errors import MoetrafficError, TraceError
from moetraffic.interop import import_files, json_reader
from moetraffic.interop.json_reader import JsonStream, integers, json_lines
from tests.interop.samples import INSPECTED, OBSERVED, PROFILE, ROUTED, mutated

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
