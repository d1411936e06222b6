"""What `watch --wandb` writes offline is read back from wandb's own file."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from moetraffic.cli import main
from moetraffic.watch import watch_run

from .logs import write_run

pytestmark = pytest.mark.slow  # wandb starts a process of its own


def records(path: Path) -> Iterator[bytes]:
    """The records of a .wandb file: blocks of 32 KiB as in LevelDB's log."""
    data, at, whole = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or its last part
            yield whole
            whole = b""


def test_each_step_is_logged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb", reason="the extra wandb is not installed")
    from wandb.proto import wandb_internal_pb2 as proto

    for name, value in (
        ("MODE", "offline"),
        ("SILENT", "true"),
        ("DIR", str(tmp_path)),
    ):
        monkeypatch.setenv(f"WANDB_{name}", value)
    path = tmp_path / "run.h5"
    write_run(path.with_name("run.h5.logs"), 6)
    assert main(["watch", str(path), "--once", "--wandb", "moe"]) == 0
    (snapshot,) = watch_run(path, follow=False)
    (file,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    logged: dict[int, dict[str, object]] = {}
    for one in records(file):
        record = proto.Record()
        record.ParseFromString(one)
        if record.WhichOneof("record_type") == "history":
            values = {
                item.key or "/".join(item.nested_key): json.loads(item.value_json)
                for item in record.history.item
            }
            logged.setdefault(record.history.step.num, {}).update(values)
    assert sorted(logged) == list(range(6))
    layer = snapshot.layers[0]
    tag = f"imbalance/layer_{layer.layer:03d}"
    found = [logged[step][tag] for step in range(6)]
    np.testing.assert_allclose(found, layer.imbalance)
