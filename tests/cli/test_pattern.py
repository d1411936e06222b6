from __future__ import annotations

import json
from pathlib import Path

import pytest

from moetraffic.cli import main
from moetraffic.trace import Trace

APNET = ["pattern", "--model", "gpt2-large", "--pp", "4", "--tp", "2", "--dp", "4"]


def test_json_has_every_kinds_matrix(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*APNET, "--json", "--algorithm", "direct"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["world"] == 32
    assert told["groups"]["tp"][:2] == [[0, 1], [2, 3]]
    for kind in ("TP", "PP", "DP", "EmbTableSync"):
        matrix = told["traffic"][kind]["matrix_bytes"]
        assert sum(map(sum, matrix)) == told["traffic"][kind]["bytes"] > 0
    assert {c["traffic"] for c in told["calls"]} == set(told["traffic"])
    assert sum(one["share"] for one in told["traffic"].values()) == pytest.approx(1)


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


def test_what_capture_trains(capsys: pytest.CaptureFixture[str]) -> None:
    own = ["pattern", "--model", "tiny", "--dp", "2", "--ep", "2", "--json"]
    own += ["--library", "moetraffic", "--dtype", "float32", "--dispatch", "padded"]
    assert main(own) == 0
    told = json.loads(capsys.readouterr().out)
    labels = {c["phase"] or c["label"] for c in told["calls"]}
    assert {"dispatch", "combine", "gradient_sync", "gradient_norm"} <= labels


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--model", "gpt9"], "a model is one of the presets"),
        (["--tp", "3"], "tp must divide the attention heads"),
        (["--dp", "0"], "at least 1, but dp is 0"),
        (["--order", "tp-dp"], "must name tp, cp, ep, dp, pp once each"),
        (["--dp", "2", "--algorithm", "star"], "the algorithm is one of ring"),
        ([], "raise one of them"),
        (["--library", "deepspeed"], "is not one of megatron, moetraffic"),
        (
            ["--library", "moetraffic", "--virtual-stages", "2", "--pp", "2"],
            "--virtual-stages",
        ),
        (["--gpus-per-node", "-1"], "it must be at least 0"),
        (["--plot", "nowhere/m.png"], "nowhere"),
        (["--zero", "3", "--pp", "2"], "use --zero 1"),
        (
            ["--dp", "3", "--algorithm", "hierarchical", "--gpus-per-node", "2"],
            "choose another algorithm",
        ),
    ],
)
def test_impossible_patterns(
    options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pattern", *options]) == 2
    told = capsys.readouterr().err
    assert said in told
    assert "Traceback" not in told


def test_what_no_micro_batch_calls_is_after_the_backward_pass(
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = ["pattern", "--model", "mixtral-8x7b", "--dp", "8", "--ep", "8"]
    asked += ["--zero", "1", "--micro-batch", "1", "--global-batch", "32", "--json"]
    assert main(asked) == 0
    found = json.loads(capsys.readouterr().out)
    when = {(call["label"] or call["phase"], call["pass"]) for call in found["calls"]}
    assert {
        ("gradient_sync", "after backward"),
        ("gradient_norm", "after backward"),
        ("dispatch", "forward"),
        ("combine_grad", "backward"),
    } <= when
    assert not {("gradient_sync", "forward"), ("gradient_norm", "forward")} & when
    (times,) = {c["times"] for c in found["calls"] if c["phase"] == "dispatch"}
    assert times == 4 * 32  # micro-batches of 32 layers
    assert found["parameters"]["total"] == pytest.approx(46.7e9, rel=1e-3)
