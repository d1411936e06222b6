from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from moetraffic.cli import main
from tests.cli.printed import unwrapped

PARTS = {
    **{"TP": ("tp", "ends"), "CP": ("cp",), "PP": ("pp",), "EP": ("ep",)},
    **{"DP": ("dp", "edp"), "EmbTableSync": ("embedding",)},
}
"""By kind of traffic of a pattern, its kinds of an estimate."""

GRID = ("--model", "gpt-3b", "--pp", "4", "--tp", "2", "--dp", "4")


def told(
    capsys: pytest.CaptureFixture[str], *arguments: object
) -> dict[str, dict[str, object]]:
    assert main(["estimate", *map(str, arguments), "--json"]) == 0
    found: dict[str, dict[str, object]] = json.loads(capsys.readouterr().out)
    return found


def test_one_configuration_adds_up(capsys: pytest.CaptureFixture[str]) -> None:
    asked = (*GRID, "--micro-batch", "1", "--platform", "polaris", "--overlap", "dp=1")
    found = told(capsys, *asked)["estimate"]
    names = ("compute", "tp", "cp", "ep", "pp", "dp", "bubble", "overhead", "optimizer")
    whole = sum(float(found[f"{name}_s"]) for name in names) - float(found["hidden_s"])
    assert found["iteration_s"] == pytest.approx(whole)
    assert float(found["hidden_s"]) > 0
    assert found["fits"] is True


def test_every_question_has_a_table_and_a_picture(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    asked = {
        "T_iter": GRID,
        "efficiency": ("--sweep", "strong", "--global-batch", "64", "--sizes", "1,3,8"),
        "impossible": ("--sweep", "strong", "--global-batch", "64", "--sizes", "1,3,8"),
        "ZeRO 3": ("--dp", "8", "--zero-stages"),
        "change of T_iter": (*GRID, "--sensitivity"),
        "configurations tried": ("--best", "--gpus", "8", "--model", "gpt-3b"),
    }
    for number, (words, arguments) in enumerate(asked.items()):
        picture, written = tmp_path / f"{number}.png", tmp_path / f"{number}.json"
        outputs = ("--plot", str(picture), "-o", str(written))
        given = ["estimate", "--platform", "tg40", *arguments, *outputs, "--tables"]
        assert main(given) == 0
        assert words in capsys.readouterr().out
        assert picture.read_bytes().startswith(b"\x89PNG")
        assert json.loads(written.read_text())["model"].startswith("gpt-")
        # nothing is overwritten unasked
        assert main(given) == 2
        assert "give --force" in capsys.readouterr().err


def test_a_layout_is_named_whole_and_its_rates_are_told(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Bytes over effective bandwidth are the time, without latency."""
    asked = ("--model", "deepseek-v2-lite", "--ep", "64", "--dp", "64")
    links = ("--bandwidth", "ep=10GB/s,other=20GB/s", "--utilization", "0.4")
    links = (*links, "--global-batch", "512")
    assert main(["estimate", *asked, *links, "--tables"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    for words in ("DP 64, EP 64, micro-batch 1", "512 sequences of 4,096 tokens"):
        assert words in said
    assert re.search(r"832 10 data parallel", said)
    found = told(capsys, *asked, *links)["estimate"]
    calls, rates = found["calls"], found["effective_bytes_s"]
    assert isinstance(calls, dict)
    assert isinstance(rates, dict)
    # 26 MoE layers, 8 micro-batches, dispatch and combine, forward and backward
    assert calls["ep"] == 26 * 8 * 4
    assert (rates["ep"], rates["tp"]) == (pytest.approx(10e9), None)
    assert main(["estimate", *asked, "--platform", "h100"]) == 2
    assert "did you mean dgx-h100" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("of", "batch"),
    [
        (
            "--model mixtral-8x7b --dp 64 --ep 8",
            "64 sequences of 4,096 tokens an iteration (1 micro-batch of 1 on 64 ",
        ),
        (
            "--model gpt-3b --pp 4 --tp 2 --dp 4 --vocab 50304",
            "64 sequences of 2,048 tokens an iteration (4 micro-batches of 4 on 4 ",
        ),
        (
            "--model deepseek-v2-lite --pp 2 --dp 8 --ep 4 --schedule dualpipe",
            "32 sequences of 4,096 tokens an iteration (4 micro-batches of 1 on 8 ",
        ),
        (
            "--model qwen3-30b-a3b --pp 2 --dp 8 --ep 4 --schedule dualpipe",
            "32 sequences of 4,096 tokens an iteration (4 micro-batches of 1 on 8 ",
        ),
        (
            "--model switch-base-8 --dp 8 --ep 8",
            "32 sequences of 512 tokens an iteration (1 micro-batch of 4 on 8 ",
        ),
    ],
)
def test_both_verbs_describe_the_same_iteration_by_default(
    of: str, batch: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["estimate", *of.split(), "--platform", "dgx-h100"]) == 0
    assert batch in unwrapped(capsys.readouterr().out).splitlines()[0]
    assert main(["pattern", *of.split()]) == 0
    assert batch in unwrapped(capsys.readouterr().out).splitlines()[0]
    estimated = told(capsys, *of.split(), "--platform", "dgx-h100")["estimate"]
    assert main(["pattern", *of.split(), "--json"]) == 0
    traffic = json.loads(capsys.readouterr().out)["traffic"]
    sent = estimated["sent_bytes"]
    assert isinstance(sent, dict)
    for kind, parts in PARTS.items():
        most = traffic.get(kind, {"busiest_rank_bytes": 0})["busiest_rank_bytes"]
        assert sum(sent[part] for part in parts) == pytest.approx(most, rel=1e-6), kind


BEST = ("--model", "mixtral-8x7b", "--layers", "8", "--platform", "dgx-h100", "--best")
BEST = (*BEST, "--gpus", "16", "--global-batch", "32")


def best_of(capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, float]:
    rows = told(capsys, *BEST, *more)["best"]
    assert isinstance(rows, list)
    first: dict[str, float] = rows[0]
    return first


def test_the_best_layout_is_one_of_the_training_that_was_described(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """What no search varies holds for every layout: the winner, estimated alone with
    the same options, takes the time that the search found."""
    options = ["--fused-attention", "--state-bytes", "8", "--fp8"]
    plain = best_of(capsys, "--no-fused-attention")
    found = best_of(capsys, *options)
    assert found["iteration_s"] < plain["iteration_s"]
    assert_alone_takes_as_long(capsys, found, *options)
    options += ["--imbalance", "1.5"]
    spread = best_of(capsys, *options, "--ep", "4")
    balanced = best_of(capsys, *options[:-2], "--ep", "4")
    assert spread["iteration_s"] > balanced["iteration_s"]
    assert_alone_takes_as_long(capsys, spread, *options)


def assert_alone_takes_as_long(
    capsys: pytest.CaptureFixture[str], found: dict[str, float], *options: str
) -> None:
    sizes = ("pp", "tp", "dp", "ep", "cp", "zero")
    alone = [part for name in sizes for part in (f"--{name}", f"{found[name]:g}")]
    alone += ["--virtual-stages", f"{found['virtual']:g}"]
    alone += ["--micro-batch", f"{found['micro_batch']:g}"]
    alone += ["--recompute", ("none", "selective", "full")[int(found["recompute"])]]
    alone += ["--sequence-parallel"] * bool(found["sequence_parallel"])
    again = told(
        capsys, *BEST[:6], "--global-batch", "32", *alone, *options,
    )["estimate"]  # fmt: skip
    assert again["iteration_s"] == pytest.approx(found["iteration_s"])


def test_sizes_that_are_given_are_kept_in_the_search(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = told(capsys, *BEST, "--ep", "4", "--zero", "1", "--micro-batch", "2")["best"]
    assert isinstance(rows, list)
    assert {(r["ep"], r["zero"], r["micro_batch"]) for r in rows} == {(4, 1, 2)}
    assert len({(r["pp"], r["tp"], r["dp"]) for r in rows}) > 1
    assert best_of(capsys, "--recompute", "modules")["recompute"] == 3
    assert main(["estimate", *BEST, "--recompute", "selective"]) == 0
    out = capsys.readouterr().out
    assert "selective recomputation" in out
    assert main(["estimate", *BEST, "--ep", "3"]) == 2
    assert "ep as given" in capsys.readouterr().err
    assert main(["estimate", *BEST, "--imbalance-from", "run.h5"]) == 2
    assert "give --ep" in capsys.readouterr().err


def test_faster_nics_shorten_what_leaves_nodes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = ("--model", "mixtral-8x7b", "--ep", "8", "--platform", "dgx-h100")
    rates = ("--sweep", "nic", "--sizes", "100Gbps,400Gbps")
    slow, fast = told(capsys, *asked, "--dp", "64", *rates)["estimate"]["iteration_s"]
    assert slow > fast
    alone = told(capsys, *asked, "--dp", "64")["estimate"]["iteration_s"]
    assert alone == pytest.approx(fast)  # a DGX H100 has 400 Gbit/s a GPU
    inside = told(capsys, *asked, "--dp", "8", *rates)["estimate"]["iteration_s"]
    assert inside[0] == inside[1]
    assert main(["estimate", *asked[:2], "--bandwidth", "1GB/s", *rates]) == 2
    assert "--sweep and --bandwidth give the same" in capsys.readouterr().err


def test_bandwidth_comes_as_a_rate_by_kind_or_measured(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    flat = told(capsys, "--dp", 4, "--bandwidth", "10GB/s")["estimate"]
    kinds = told(capsys, "--dp", 4, "--bandwidth", "tp=1GB/s,dp=10GB/s")["estimate"]
    assert flat["dp_s"] == kinds["dp_s"]
    table = tmp_path / "bench.csv"
    lines = ["collective,ranks,size_bytes,time_us"]
    lines += [
        f"all_reduce,4,{size},{size * 1.5 / 10e9 * 1e6}" for size in (10**6, 10**10)
    ]
    table.write_text("\n".join(lines) + "\n")
    measured = told(capsys, "--dp", 4, "--bandwidth", table)["estimate"]
    assert measured["dp_s"] == pytest.approx(flat["dp_s"])


def test_several_bandwidths_are_rows_of_one_table(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rates = ("100Gbps", "25GB/s", "400Gbps")
    asked = ("--dp", "4", "--bandwidth")
    found = told(capsys, *asked, ",".join(rates))
    alone = [told(capsys, *asked, r)["estimate"]["iteration_s"] for r in rates]
    assert found["values"] == list(rates)
    assert found["estimate"]["iteration_s"] == pytest.approx(alone)
    assert alone[0] > alone[1] > alone[2]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--dp", "2"), "more than one GPU needs a network"),
        (("--platform", "nowhere"), "nowhere"),
        (
            ("--model", "gpt-3b", "--pp", "64", "--platform", "tg40"),
            "chunk of a pipeline holds",
        ),
        (("--model", "gpt-9b"), "gpt-9b"),
        (("--best", "--zero-stages", "--platform", "tg40"), "at a time"),
        (("--convention", "color=red"), "a convention is one of"),
        (("--convention", "flops=few"), "flops is one of"),
        (("--overlap", "ends"), "traffic that overlaps is one of"),
        (("--overlap", "dp=much"), "is a number"),
        (
            ("--sweep", "strong", "--sizes", "1,x", "--platform", "tg40"),
            "whole numbers",
        ),
        (("--best", "--platform", "tg40", "--memory-gb", "0.01"), "fits into"),
        (("--recompute", "half"), "recompute is one of"),
        (("--platform", "pinnacles", "--utilization", "0.4"), "give --peak-tflops"),
        (("--dp", "2", "--bandwidth", "1GB/s,x"), "a rate is a positive number"),
        (
            ("--dp", "2", "--bandwidth", "1GB/s,2GB/s", "--zero-stages"),
            "several bandwidths",
        ),
    ],
)
def test_what_cannot_be_is_one_sentence(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str
) -> None:
    assert main(["estimate", *arguments]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert len(said.strip().splitlines()) == 1
