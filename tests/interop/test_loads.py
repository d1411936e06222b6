"""Loads of experts: every form of file, and the verbs that take them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from moetraffic.analysis.placement import place
from moetraffic.cli.app import app
from moetraffic.errors import LayoutError, TraceError
from moetraffic.interop.read import ImportOptions, import_files
from moetraffic.interop.write import export_trace
from moetraffic.policies.evaluate import evaluate
from moetraffic.trace import ROUTING, Trace

LAYERS = np.array([[4, 0, 2, 2], [1, 1, 3, 3]])  # copies of 4 experts, k = 2
STEPS = np.stack([LAYERS, 2 * LAYERS])


def loads(trace: Trace) -> dict[tuple[int, int], list[int]]:
    """Copies of experts by iteration and layer, micro-batches summed."""
    found: dict[tuple[int, int], Any] = {}
    for call in trace.find(operation=ROUTING).tolist():
        site = trace.sites[trace.occurrences.site[call]]
        key = int(trace.occurrences.iteration[call]), site.layer
        found[key] = found.get(key, 0) + trace.demand(np.array([call]))[0, 0]
    return {key: copies.tolist() for key, copies in found.items()}


def lines(path: Path, *records: dict[str, Any]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def saved(path: Path, value: Any) -> None:
    torch.save(value, path)


def safetensors(path: Path, value: Any) -> None:
    from safetensors.numpy import save_file

    save_file({"routed_experts": value}, path)


CHOSEN = np.array([[[0, 2], [2, 3]], [[3, 0], [3, 2]], [[0, 3], [1, 0]]], np.int16)
STATS = {"record_type": "eplb_load_stats", "p2l_map": [[0, 1, 2, 3, 0]] * 2}
SLOTS = [[3, 0, 2, 2, 1], [1, 1, 3, 3, 0]]

FORMS: dict[str, tuple[str, Callable[[Path], object], dict[tuple[int, int], Any]]] = {
    "sglang": (
        "expert_distribution_recorder_1744.37.pt",
        lambda path: saved(
            path, {"rank": 0, "logical_count": torch.tensor(STEPS, dtype=torch.int32)}
        ),
        {(i, n): STEPS[i, n].tolist() for i in (0, 1) for n in (0, 1)},
    ),
    "ring buffer and a dense layer": (
        "a.pt",
        lambda path: saved(
            path,
            {"logical_count": torch.tensor([[[0] * 4, [1, 2, 3, 4]], [[0] * 4] * 2])},
        ),
        {(0, 1): [1, 2, 3, 4]},
    ),
    "json": (
        "a.json",
        lambda path: path.write_text(json.dumps({"logical_count": LAYERS.tolist()})),
        {(0, 0): LAYERS[0].tolist(), (0, 1): LAYERS[1].tolist()},
    ),
    "slots": (
        "stats.jsonl",
        lambda path: lines(
            path,
            {"record_type": "eplb_load_meta"},
            {**STATS, "step": 7, "expert_load": SLOTS},
        ),
        {(7, 0): LAYERS[0].tolist(), (7, 1): LAYERS[1].tolist()},
    ),
    "array": (
        "load.npy",
        lambda path: np.save(path, LAYERS),
        {(0, 0): LAYERS[0].tolist(), (0, 1): LAYERS[1].tolist()},
    ),
    "ascend": (
        "moe_load_10.npy",
        lambda path: np.save(path, LAYERS.reshape(2, 2, 2)),
        {(0, 0): LAYERS[0].tolist(), (0, 1): LAYERS[1].tolist()},
    ),
    "replay": (
        "rollout.npz",
        lambda path: np.savez(path, routed_experts=CHOSEN),
        {(0, 0): [3, 0, 1, 2], (0, 1): [1, 1, 2, 2]},
    ),
    "replay of tensors": (
        "rollout.safetensors",
        lambda path: safetensors(path, CHOSEN),
        {(0, 0): [3, 0, 1, 2], (0, 1): [1, 1, 2, 2]},
    ),
    "Megatron before layers had names": (
        "rank3.jsonl",
        lambda path: lines(
            path, {"iteration": 5, "3": [[1, 2], [3, 4]], "4": [[1, 1]]}
        ),
        {(5, 3): [4, 6], (5, 4): [1, 1]},
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_loads(tmp_path: Path, form: str) -> None:
    name, write, expected = FORMS[form]
    write(tmp_path / name)
    found, merged = import_files([tmp_path / name])
    assert found == "load"
    assert loads(merged.trace) == expected
    assert "source ranks are unknown" in merged.trace.meta.inferred
    assert {group.kind for group in merged.trace.groups} == {"load"}
    merged.trace.save(tmp_path / "run.h5")
    assert loads(Trace.open(tmp_path / "run.h5")) == expected


def test_tables_of_ranks_are_summed_and_equal_ones_taken_once(tmp_path: Path) -> None:
    for rank, count in enumerate((5, 7)):
        name = f"expert_distribution_rank{rank}_timestamp1744347750.3{rank}.csv"
        (tmp_path / name).write_text(f"layer_id,expert_id,count\n3,0,{count}\n3,2,1\n")
    options = ImportOptions(experts=4)
    trace = import_files([tmp_path], options=options)[1].trace
    assert loads(trace) == {(0, 3): [12, 0, 2, 0]}
    assert "sum over the files of 2 ranks" in trace.meta.inferred
    other, first = sorted(tmp_path.iterdir(), reverse=True)
    other.write_text(first.read_text())
    trace = import_files([tmp_path], options=options)[1].trace
    assert loads(trace) == {(0, 3): [5, 0, 1, 0]}
    with pytest.raises(TraceError, match="expert 2, but --experts is 2: raise it"):
        import_files([tmp_path], options=ImportOptions(experts=2))


def test_megatron_ranks_hold_their_own_experts_and_stages_their_layers(
    tmp_path: Path,
) -> None:
    for rank in range(4):
        tpe = {"iter": 9, "block": "decoder", "layer": 0, "tpe": [[rank, 1], [rank, 1]]}
        extra = {"iter": 9, "block": "mtp", "mtp_idx": 0, "layer": 0, "tpe": [[8, 8]]}
        lines(tmp_path / f"rank{rank}.jsonl", tpe, extra)
    trace = import_files([tmp_path], options=ImportOptions(ep=2, pp=2))[1].trace
    assert loads(trace) == {(9, 0): [0, 2, 2, 2], (9, 1): [4, 2, 6, 2]}
    assert "4 load of a layer beside the decoder's" in trace.meta.missing
    everyone = import_files([tmp_path])[1].trace
    assert loads(everyone) == {(9, 0): [0, 2, 2, 2, 4, 2, 6, 2]}
    assert "ranks that hold the experts, in order: 4" in everyone.meta.inferred
    alone = import_files([tmp_path / "rank3.jsonl"])[1].trace
    assert not alone.meta.complete


def test_tokens_follow_from_k(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", routed_experts=CHOSEN)
    trace = import_files([tmp_path / "a.npz"])[1].trace
    assert (trace.meta.k, trace.steps.tokens.tolist()) == (2, [[3]])


@pytest.mark.parametrize(
    ("name", "write", "reason"),
    [
        (
            "a.pt",
            lambda p: saved(p, {"weight": 1, "bias": 2}),
            "but neither logical_count",
        ),
        ("b.pt", lambda p: p.write_bytes(b"\x80\x02carray"), "not only arrays"),
        ("c.npy", lambda p: np.save(p, np.array([{}])), "not only arrays"),
        ("d.npy", lambda p: np.save(p, LAYERS / 3), "have fractions"),
        ("e.npy", lambda p: np.save(p, -LAYERS), "no counts of tokens"),
        (
            "f.npy",
            lambda p: np.save(p, CHOSEN),
            "loads by step or the experts of tokens",
        ),
        ("load.npy", lambda p: np.save(p, 0 * LAYERS), "holds no load"),
    ],
)
def test_what_is_no_load_is_refused(
    tmp_path: Path, name: str, write: Callable[[Path], object], reason: str
) -> None:
    write(tmp_path / name)
    with pytest.raises(TraceError, match=reason):
        import_files([tmp_path / name])


@pytest.fixture
def load(tmp_path: Path) -> Path:
    """A load of 32 passes, whose experts 0 to 3 of 8 have three times the others."""
    share = np.array([3.0] * 4 + [1] * 4) / 16
    counts = np.random.default_rng(0).multinomial(8000, share, (32, 2))
    saved(tmp_path / "load.pt", {"logical_count": torch.tensor(counts)})
    path = tmp_path / "load.h5"
    import_files([tmp_path / "load.pt"])[1].trace.save(path)
    return path


def test_verbs_take_a_load_with_a_number_of_ranks(load: Path) -> None:
    with Trace.open(load) as trace:
        placed = place(trace, ep=2, placement="greedy")
        assert (placed.meta.world, placed.meta.ep) == (2, 2)
        sent = placed.wire(placed.find(phase="dispatch")).sum(axis=0)
        routed = trace.demand(trace.find(operation=ROUTING)).sum()
        assert sent.sum() == routed
        assert abs(sent.sum(axis=0) / routed - 0.5).max() < 0.01
        with pytest.raises(LayoutError, match="without ranks: give their number, --ep"):
            place(trace)
        with pytest.raises(LayoutError, match="do not divide among 3 ranks"):
            place(trace, ep=3)
    result = evaluate(load, ["eplb", "contiguous"], ep=2)
    scores = result.tables["policies"].set_index("policy")["load_imbalance"]
    assert scores["eplb"] < 1.05 < 1.4 < scores["contiguous"]
    assert any("source ranks are unknown" in note for note in result.notes)
    for options in ([], ["--ep", "2"]):
        ran = CliRunner().invoke(app, ["analyze", str(load), "--json", *options])
        assert ran.exit_code == 0, ran.output


def test_eplb_and_sglang_read_what_is_exported(load: Path, tmp_path: Path) -> None:
    export_trace(load, tmp_path / "load.npy", "eplb")
    export_trace(load, tmp_path / "load.json", "eplb")
    exported = np.load(tmp_path / "load.npy")
    content = json.loads((tmp_path / "load.json").read_text())
    assert content == {"logical_count": exported.tolist()}
    for name in ("load.npy", "load.json"):
        again = import_files([tmp_path / name])[1].trace
        assert list(loads(again).values()) == exported.tolist()
