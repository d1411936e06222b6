"""Files that are large, cut, damaged or made to deceive end in one sentence."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from moetraffic.errors import TraceError
from moetraffic.interop import import_files

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
