"""Damaged and changed files of every importer end in a trace or in one sentence."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from moetraffic.data import path as data
from moetraffic.errors import TraceError
from moetraffic.interop.read import IMPORTERS, import_files
from moetraffic.interop.write import ExportOptions, export_trace

from .samples import INSPECTED, OBSERVED, PROFILE, ROUTED, mutated

RECORDED = {
    "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}},
    "entries": [
        {
            **{"process_group": ["0", "default_pg"], "collective_seq_id": 1},
            **{"profiling_name": f"nccl:{name}", "time_created_ns": 5},
            **{"input_sizes": [[2, 4], [1]], "input_dtypes": ["Float", "Float"]},
            **{"output_sizes": [[1, 4], [3]], "output_dtypes": ["Float", "Float"]},
        }
        for name in ("all_to_all", "send 0->1", "recv 0<-1", "all_reduce")
    ],
}
COUNTED = {
    "logical_count": [[[3, 1, 0, 2], [0, 0, 0, 0]], [[1, 1, 1, 1], [2, 2, 0, 0]]]
}
STATISTICS = {
    **{"record_type": "eplb_load_stats", "step": 1},
    **{"expert_load": [[3, 1], [2, 2]], "p2l_map": [[0, 1], [1, 0]]},
}
LOCAL = {"iter": 2, "block": "decoder", "layer": 1, "tpe": [[3, 1], [2, 2]]}

JSON: dict[tuple[str, str], Any] = {  # by importer and name of the file
    ("profiler", "rank0.json"): PROFILE,
    ("execution-trace", "et_rank0.json"): OBSERVED,
    ("megatron", "router_trace_rank0.jsonl"): ROUTED,
    ("nccl-inspector", "a.log"): INSPECTED,
    ("flight-recorder", "rank0.json"): RECORDED,
    ("load", "a.json"): COUNTED,
    ("load", "stats.jsonl"): STATISTICS,
    ("load", "rank0.jsonl"): LOCAL,
}


def array(save: Callable[[Any, Any], object], value: Any) -> bytes:
    file = io.BytesIO()
    save(file, value)
    return file.getvalue()


def graph(folder: Path) -> bytes:
    """A rank's Chakra graph of one iteration."""
    options = ExportOptions(iterations=range(5, 6), layers=(3,))
    export_trace(data("golden.h5"), folder / "graph", "chakra", options=options)
    return next((folder / "graph").glob("*.0.et")).read_bytes()


LOADS = np.array([[3, 1, 0], [2, 2, 1]])
BYTES: dict[tuple[str, str], Callable[[Path], bytes]] = {
    ("chakra", "run.0.et"): graph,
    ("matrix", "a.txt"): lambda _: b"0 5K 2\n7 0 1e3\n4 4 0.5\n",
    ("csv", "a.csv"): lambda _: (
        b"iteration,layer,phase,source,destination,bytes\n0,1,dispatch,0,1,512\n"
        b"0,1,combine,1,0,512\n1,1,dispatch,1,0,64\n"
    ),
    ("load", "a.csv"): lambda _: b"layer_id,expert_id,count\n3,0,24990\n3,18,39249\n",
    ("load", "load.npy"): lambda _: array(np.save, LOADS),
    ("load", "load.npz"): lambda _: array(lambda f, v: np.savez(f, load=v), LOADS),
    ("load", "load.pt"): lambda _: array(
        lambda f, v: torch.save({"logical_count": torch.tensor(v)}, f), LOADS
    ),
}


def changed(content: bytes, seed: np.random.Generator) -> bytes:
    """The bytes with some replaced, and perhaps cut or repeated."""
    made = bytearray(content)
    for place in seed.integers(len(made), size=seed.integers(1, 6)):
        made[place] = seed.integers(256)
    if seed.random() < 0.3:
        del made[seed.integers(len(made)) :]
    if seed.random() < 0.1:
        made += made[seed.integers(len(made) + 1) :]
    return bytes(made)


def import_mutants(folder: Path, name: tuple[str, str], number: int) -> None:
    importer, file = name
    path, seed = folder / file, np.random.default_rng(0)
    sample = JSON[name] if name in JSON else BYTES[name](folder)
    for _ in range(number):
        if name in JSON:
            value = mutated(sample, seed)
            path.write_text(json.dumps(value, ensure_ascii=True) + "\n")
        else:
            path.write_bytes(changed(sample, seed))
        said = ""
        try:
            import_files([path], format=importer)
        except TraceError as error:
            said = str(error)
        assert "\n" not in said, path.read_bytes()


SAMPLES = [*JSON, *BYTES]


def test_every_importer_has_a_sample() -> None:
    assert {importer for importer, _ in SAMPLES} == set(IMPORTERS)


@pytest.mark.parametrize("name", SAMPLES, ids=" ".join)
def test_some_mutants_of_each_importer(tmp_path: Path, name: tuple[str, str]) -> None:
    import_mutants(tmp_path, name, 30)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", SAMPLES, ids=" ".join)
def test_mutants_of_each_importer(tmp_path: Path, name: tuple[str, str]) -> None:
    import_mutants(tmp_path, name, 10_000)
