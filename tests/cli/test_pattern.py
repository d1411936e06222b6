"""``moetraffic pattern``: traffic by kind, matrices, traces, lists of values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from moetraffic.cli import main
from moetraffic.trace import Trace

APNET = ["--model", "gpt2-large", "--pp", "4", "--tp", "2", "--dp", "4"]
MIXTRAL = ["--model", "mixtral-8x7b", "--dp", "8", "--ep", "8"]


def tables(capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    """Return the tables of the verb's JSON."""
    assert main(["pattern", *options, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    return dict(found["tables"])


def test_tables_have_traffic_groups_calls_and_matrices(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = tables(capsys, *APNET, "--algorithm", "direct")
    groups = {row["kind"]: row for row in found["groups"]}
    assert groups["tp"]["members"].startswith("0, 1; 2, 3; ")
    kinds = {row["traffic"]: row for row in found["traffic"]}
    assert {"TP", "PP", "DP", "EmbTableSync"} <= set(kinds)
    for kind, row in kinds.items():
        cells = [c for c in found["matrix"] if c["traffic"] == kind]
        total = sum(cell["bytes_between_ranks"] for cell in cells)
        assert total == row["bytes_between_ranks"] > 0
    assert {call["traffic"] for call in found["calls"]} == set(kinds)
    assert sum(row["byte_share"] for row in kinds.values()) == pytest.approx(1)


def test_a_picture_and_a_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture, trace = tmp_path / "m.png", tmp_path / "m.h5"
    small = ["pattern", "--model", "tiny", "--dp", "4", "--ep", "2", "--pp", "2"]
    asked = [*small, "--plot", str(picture), "-o", str(trace), "--iterations", "2"]
    assert main(asked) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    with Trace.open(trace) as opened:
        assert opened.meta.world == 8
        assert opened.iterations.tolist() == [0, 1]
    before = picture.read_bytes(), trace.read_bytes()
    capsys.readouterr()
    assert main(asked) == 2
    assert "not overwritten" in capsys.readouterr().err
    assert (picture.read_bytes(), trace.read_bytes()) == before
    assert main([*asked, "--force"]) == 0


def test_lists_of_values_are_one_table_and_one_chart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "sweep.png"
    lists = [*MIXTRAL[:2], "--ep", "4", "--dp", "4,8", "--zero", "0,1"]
    found = tables(capsys, *lists, "--plot", str(picture))["traffic"]
    assert picture.exists()
    for dp, zero in ((4, 1), (8, 0)):
        alone = tables(
            capsys, *MIXTRAL[:2], "--ep", "4", "--dp", str(dp), "--set", f"zero={zero}"
        )["traffic"]
        own = [row for row in found if (row["dp"], row["zero_stage"]) == (dp, zero)]
        assert [{n: r[n] for n in alone[0]} for r in own] == alone


def test_times_are_those_of_an_estimate(capsys: pytest.CaptureFixture[str]) -> None:
    rows = tables(capsys, *MIXTRAL, "--platform", "dgx-h100")["traffic"]
    assert main(["estimate", *MIXTRAL, "--platform", "dgx-h100", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    terms = {row["term"]: row["time"] for row in found["tables"]["terms"]}
    times = {row["traffic"]: row["time"] for row in rows}
    assert times["EP"] == pytest.approx(terms["expert parallel"])
    assert times["DP"] == pytest.approx(terms["data parallel"])


def test_what_capture_trains(capsys: pytest.CaptureFixture[str]) -> None:
    own = ["--model", "tiny", "--dp", "2", "--ep", "2", "--library", "moetraffic"]
    own += ["--set", "dtype=float32", "--set", "dispatch=padded"]
    calls = {row["call"] for row in tables(capsys, *own)["calls"]}
    assert {"dispatch", "combine", "gradient_sync", "gradient_norm"} <= calls


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--model gpt9", "a model is one of the presets"),
        ("--tp 3", "tp must divide the attention heads"),
        ("--dp 0", "dp"),
        ("--dp two", "dp is a number, not 'two': change --dp"),
        ("--dp 2 --set order=tp-dp", "must name tp, cp, ep, dp, pp once each"),
        ("--dp 2 --algorithm star", "--algorithm is one of ring"),
        ("", "a single rank sends nothing"),
        ("--dp 2 --library deepspeed", "--library is one of megatron, moetraffic"),
        ("--dp 2 --set color=red", "a field of --set is one of"),
        ("--dp 2 --set dp=2", "given by --dp and --set"),
        ("--dp 2 --zero 1 --set utilization=0.4", "is of a system"),
        ("--dp 2 --plot nowhere/m.png", "nowhere"),
        ("--zero 3 --pp 2", "use --zero 1"),
        (
            "--dp 3 --algorithm hierarchical --gpus-per-node 2",
            "choose another algorithm",
        ),
        ("--dp 4 --set state_bytes=8", "--set state_bytes changes nothing"),
        ("--dp 4 --set prefetch=2", "--set prefetch changes nothing"),
        ("--dp 20000 --algorithm direct", "3.2 GB: choose --algorithm ring"),
    ],
)
def test_impossible_patterns(
    options: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pattern", *options.split()]) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert said in error
    assert "Traceback" not in error


def test_what_no_micro_batch_calls_is_after_the_backward_pass(
    capsys: pytest.CaptureFixture[str],
) -> None:
    more = ["--zero", "1", "--micro-batch", "1", "--global-batch", "32"]
    calls = tables(capsys, *MIXTRAL, *more)["calls"]
    when = {(row["call"], row["pass"]) for row in calls}
    assert {
        ("gradient_sync", "after backward"),
        ("gradient_norm", "after backward"),
        ("dispatch", "forward"),
        ("combine_grad", "backward"),
    } <= when
    assert not {("gradient_sync", "forward"), ("gradient_norm", "forward")} & when
    (times,) = {r["calls_per_iteration"] for r in calls if r["call"] == "dispatch"}
    assert times == 4 * 32  # micro-batches of 32 layers
