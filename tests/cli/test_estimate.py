"""``moetraffic estimate``: one layout, lists of values, the best one, captured runs."""

from __future__ import annotations

import json
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from moetraffic.analysis.load import rank_shares
from moetraffic.analysis.times.calibration import step_times
from moetraffic.cli import main
from moetraffic.data import published
from moetraffic.patterns.bandwidth import big_red_200
from moetraffic.trace import Trace

PARTS = {
    **{"TP": ("tp", "ends"), "CP": ("cp",), "PP": ("pp",), "EP": ("ep",)},
    **{"DP": ("dp", "edp"), "EmbTableSync": ("embedding",)},
}
"""By kind of traffic of a pattern, its kinds of an estimate."""

GRID = "--model gpt-3b --pp 4 --tp 2 --dp 4"


def found(capsys: pytest.CaptureFixture[str], verb: str, *words: object) -> Any:
    """Return the JSON result of a verb; its options are separated by spaces."""
    options = " ".join(map(str, words)).split()
    assert main([verb, *options, "--json"]) == 0, capsys.readouterr().err
    result = json.loads(capsys.readouterr().out)
    return result


def told(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    """Return facts of an estimate, with times of the terms."""
    result = found(capsys, "estimate", *words)
    terms = {row["term"]: row["time"] for row in result["tables"]["terms"]}
    return {**result["data"], "terms": terms}


def refused(capsys: pytest.CaptureFixture[str], words: str) -> str:
    """Return the sentence with which a verb refuses its options."""
    assert main(words.split()) == 2
    error = capsys.readouterr().err
    assert len(error.strip().splitlines()) == 1
    return error


def test_one_configuration_adds_up(capsys: pytest.CaptureFixture[str]) -> None:
    one = told(capsys, GRID, "--micro-batch 1 --platform polaris --overlap dp=1")
    parts = [time for term, time in one["terms"].items() if term != "iteration"]
    assert one["iteration_s"] == pytest.approx(sum(parts) - one["hidden_s"])
    assert one["hidden_s"] > 0
    assert one["fits"] is True


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (GRID, "iteration"),
        ("--dp 1,3,8 --global-batch 64", "impossible"),
        ("--dp 8 --zero 0,1,2,3", "speedup"),
        (f"{GRID} --sensitivity", "for 1% of"),
        ("--best --gpus 8 --model gpt-3b", "cannot be ranked"),
    ],
)
def test_every_question_has_a_table_and_a_picture(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, options: str, said: str
) -> None:
    picture, written = tmp_path / "a.png", tmp_path / "a.json"
    outputs = ["--plot", str(picture), "-o", str(written)]
    asked = ["estimate", "--platform", "tg40", *options.split(), *outputs]
    assert main(asked) == 0
    assert said in " ".join(capsys.readouterr().out.split())
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert json.loads(written.read_text())["verb"] == "estimate"
    # nothing is overwritten unasked
    assert main(asked) == 2
    assert "give --force" in capsys.readouterr().err


def test_bytes_over_effective_bandwidth_are_the_time(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Without latency; 26 MoE layers, 8 micro-batches, dispatch and combine, forward
    and backward."""
    links = "--bandwidth ep=10GB/s,other=20GB/s --set utilization=0.4"
    asked = f"--model deepseek-v2-lite --ep 64 --dp 64 {links} --global-batch 512"
    result = found(capsys, "estimate", asked)
    assert "dp 64, ep 64), 512 sequences of 4,096 tokens" in result["head"]
    terms = {row["term"]: row for row in result["tables"]["terms"]}
    assert terms["expert parallel"]["calls_per_iteration"] == 26 * 8 * 4
    assert terms["expert parallel"]["rate"] == pytest.approx(10e9)


@pytest.mark.parametrize(
    ("options", "batch"),
    [
        ("--model mixtral-8x7b --dp 64 --ep 8", "64 sequences of 4,096"),
        ("--model gpt-3b --pp 4 --tp 2 --dp 4 --vocab 50304", "64 sequences of 2,048"),
        (
            "--model deepseek-v2-lite --pp 2 --dp 8 --ep 4 --schedule dualpipe",
            "32 sequences of 4,096",
        ),
        ("--model switch-base-8 --dp 8 --ep 8", "32 sequences of 512"),
    ],
)
def test_both_verbs_describe_the_same_iteration(
    options: str, batch: str, capsys: pytest.CaptureFixture[str]
) -> None:
    estimated = found(capsys, "estimate", options, "--platform dgx-h100")
    pattern = found(capsys, "pattern", options)
    assert batch in estimated["head"]
    assert batch in pattern["head"]
    sent = {row["traffic"]: row for row in pattern["tables"]["sent"]}
    for kind, parts in PARTS.items():
        most = sent.get(kind, {"busiest_rank_bytes": 0})["busiest_rank_bytes"]
        total = sum(estimated["data"]["sent_bytes"][part] for part in parts)
        assert total == pytest.approx(most, rel=1e-6), kind


# ---- lists of values -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("same", "name", "values"),
    [
        ("--dp 8 --platform tg40", "zero", (0, 1, 3)),
        ("--platform dgx-a100 --global-batch 64", "dp", (1, 4, 8)),
        ("--dp 4", "bandwidth", ("100Gbps", "25GB/s", "400Gbps")),
        ("--tp 2 --dp 4 --platform dgx-a100", "model", ("megatron-1.7b", "bert-large")),
        ("--model gpt-3b --dp 16 --platform dgx-h100", "nic", ("100Gbps", "400Gbps")),
        ("--dp 8", "platform", ("dgx-a100", "dgx-h100")),
        ("--dp 8 --platform tg40", "recompute", ("none", "full")),
    ],
)
def test_a_list_of_values_is_each_alone(
    same: str, name: str, values: tuple[Any, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    every = ",".join(map(str, values))
    rows = found(capsys, "estimate", same, f"--{name} {every}")["tables"]["estimates"]
    column = {"zero": "zero_stage"}.get(name, name)
    assert [row[column] for row in rows] == list(values)
    for row in rows:
        alone = told(capsys, same, f"--{name} {row[column]}")
        assert row["iteration_time"] == alone["iteration_s"]
        assert row["memory_needed"] == alone["memory_bytes"]["total"]


def test_lists_are_every_combination_with_speedup_and_efficiency(
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = "--dp 1,2,4 --zero 0,1 --platform polaris"
    rows = found(capsys, "estimate", options)["tables"]["estimates"]
    assert [(row["dp"], row["zero_stage"]) for row in rows] == [
        *((dp, zero) for dp in (1, 2, 4) for zero in (0, 1))
    ]
    first, last = rows[0], rows[-1]
    assert last["speedup"] == pytest.approx(
        last["tokens_per_s"] / first["tokens_per_s"]
    )
    assert last["efficiency"] == pytest.approx(last["speedup"] / 4)


# ---- the best layout -----------------------------------------------------------------

BEST = "--model mixtral-8x7b --layers 8 --platform dgx-h100 --global-batch 32"


def best_of(capsys: pytest.CaptureFixture[str], *more: str) -> list[dict[str, Any]]:
    """Return the rows of a search on 16 GPUs."""
    asked = (BEST, "--best --gpus 16", *more)
    rows: list[dict[str, Any]] = found(capsys, "estimate", *asked)["tables"]["best"]
    return rows


@pytest.mark.parametrize("more", ["", "--set imbalance=1.5 --ep 4"])
def test_the_best_layout_alone_takes_as_long(
    capsys: pytest.CaptureFixture[str], more: str
) -> None:
    """What no search varies holds for every layout."""
    options = f"--set state_bytes=8 --set fp8=true {more}"
    row = best_of(capsys, options)[0]
    sizes = ("pp", "tp", "dp", "ep", "virtual", "micro_batch", "recompute")
    fields = {f"{n}={row[n]}" for n in sizes}
    fields |= {f"sequence_parallel={row['sequence_parallel']}"}
    fields |= {f"zero={row['zero_stage']}"}
    given = "--ep 4" if "--ep" in more else ""
    alone = " ".join(
        f"--set {field}"
        for field in sorted(fields)
        if not (given and field.startswith("ep="))
    )
    again = told(capsys, BEST, alone, options)
    assert again["iteration_s"] == pytest.approx(row["iteration_time"])


def test_values_that_are_given_restrict_the_search(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = best_of(capsys, "--ep 4 --zero 0,1 --micro-batch 2")
    assert {(r["ep"], r["micro_batch"]) for r in rows} == {(4, 2)}
    assert {r["zero_stage"] for r in rows} <= {0, 1}
    assert len({(r["pp"], r["tp"], r["dp"]) for r in rows}) > 1
    assert best_of(capsys, "--recompute modules")[0]["recompute"] == "modules"
    asked = f"estimate {BEST} --best --gpus 16"
    assert "ep as given" in refused(capsys, f"{asked} --ep 3")
    assert "give --ep" in refused(capsys, f"{asked} --imbalance-from run.h5")


# ---- systems -------------------------------------------------------------------------


def bench(path: Path, rates: dict[int, float]) -> Path:
    """Write a table of bus bandwidths in GB/s by number of ranks."""
    lines = ["collective,ranks,size_bytes,time_us"]
    for collective, twice in (("all_reduce", 2), ("all_to_all", 1)):
        for ranks, rate in rates.items():
            for size in (1_000, 1_000_000):
                wire = twice * (ranks - 1) / ranks * size
                lines.append(f"{collective},{ranks},{size},{wire / rate / 1e3}")
    path.write_text("\n".join(lines) + "\n")
    return path


def test_bandwidth_is_a_rate_by_kind_or_measured(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    flat = told(capsys, "--dp 4 --bandwidth 10GB/s")["terms"]["data parallel"]
    kinds = told(capsys, "--dp 4 --bandwidth tp=1GB/s,dp=10GB/s")["terms"]
    assert kinds["data parallel"] == flat
    file = bench(tmp_path / "bench.csv", {4: 10.0})
    for option in ("bandwidth", "platform"):
        measured = told(capsys, f"--dp 4 --{option} {file}")["terms"]
        assert measured["data parallel"] == pytest.approx(flat)
    slow, fast = (
        told(capsys, f"--dp 16 --platform dgx-a100 --protocol {name}")["terms"]
        for name in ("IPoIB", "RDMA")
    )
    assert slow["data parallel"] > 2 * fast["data parallel"]


def test_big_red_200_has_its_measured_links(
    capsys: pytest.CaptureFixture[str],
) -> None:
    how = "--model gpt-350m --platform big-red-200 --set gradient_dtype=2"
    one = told(capsys, how, "--dp 8")
    wire, took = one["sent_bytes"]["dp"], one["terms"]["data parallel"]
    size = wire / (2 * 7 / 8)
    known = big_red_200().effective("all_reduce", 8, size, span=2).time_s
    assert took == pytest.approx(float(known))
    rows = [row for row in published("jia_nccl_tests") if row["gpus"] == "8"]
    assert wire / took < 1.02 * max(float(row["busbw_GBps"]) for row in rows) * 1e9
    error = refused(capsys, f"estimate {how} --dp 16")
    assert "all_reduce over 4 nodes is not measured" in error


# ---- captured runs -------------------------------------------------------------------


def test_a_capture_is_projected_by_the_formula(
    capsys: pytest.CaptureFixture[str], captured: Path, tmp_path: Path
) -> None:
    asked = f"--project {captured} --efficiency 1,0.5 --gpus 8,16"
    rows = found(capsys, "estimate", asked)["tables"]["projection"]
    with Trace.open(captured) as trace:
        taken = step_times(trace)
    compute, sent = taken.compute_s, taken.communication_s
    times = [row["iteration_time"] for row in rows]
    assert times == pytest.approx([compute + sent, compute + 2 * sent])
    rates = [row["throughput"] for row in rows]
    assert rates == pytest.approx([2, 4 * (compute + sent) / (compute + 2 * sent)])
    file = bench(tmp_path / "200gbe.csv", {4: 8.0, 8: 2.0})
    asked = f"--project {captured} --gpus 4,8 --efficiency {file}"
    rows = found(capsys, "estimate", asked)["tables"]["projection"]
    # the same buffers: 7/8 in place of 3/4 of them are sent, at a quarter of the rate
    reached = [row["network_efficiency"] for row in rows]
    assert reached == pytest.approx([1.0, (3 / 4) / (7 / 8) / 4], rel=1e-4)


def test_a_calibrated_estimate_is_of_the_captured_layout_unless_asked(
    capsys: pytest.CaptureFixture[str], captured: Path
) -> None:
    own = found(capsys, "estimate", f"--calibrate {captured}")
    terms = {row["term"]: row for row in own["tables"]["terms"]}
    assert terms["compute"]["measured"] == pytest.approx(terms["compute"]["time"])
    assert "The model explains" in " ".join(own["verdict"])
    more = found(capsys, "estimate", f"--calibrate {captured} --dp 8")
    assert "8 GPUs" in more["head"]
    full = found(capsys, "estimate", f"--calibrate {captured} --recompute full")
    assert full["data"]["iteration_s"] > own["data"]["iteration_s"]


SMALL_MOE = "--model mixtral-8x7b --layers 4 --hidden 512 --heads 8 --sequence 256"
SMALL_MOE += " --set kv_heads=8"


@settings(max_examples=8, deadline=None)
@given(
    demand=arrays(np.int64, (3, 4, 2, 8), elements=st.integers(0, 40)),
    ep=st.sampled_from([2, 4, 8]),
    pp=st.sampled_from([1, 2]),
    k=st.sampled_from([1, 2]),
)
def test_both_verbs_have_the_measured_imbalance_of_each_exchange(
    tmp_path_factory: pytest.TempPathFactory,
    demand: np.ndarray,
    ep: int,
    pp: int,
    k: int,
) -> None:
    """Each layer's busiest rank has the mean of max/mean over layers and iterations,
    whichever rank it is; what all ranks send is as without."""
    demand[..., 0] += 1  # of iterations, layers, ranks, experts
    path = tmp_path_factory.mktemp("drawn") / "run.h5"
    Trace.from_arrays(demand=demand, k=1).save(path)
    loads = demand.sum(axis=2).reshape(3, 4, ep, -1).sum(axis=3)
    ratio = float((loads.max(axis=2) / loads.mean(axis=2)).mean())
    with Trace.open(path) as trace:
        shares = rank_shares(trace, ep)
    assert shares.sum(axis=1) == pytest.approx(np.ones(4))
    assert ep * shares.max(axis=1) == pytest.approx(np.full(4, ratio))
    total = loads.sum(axis=0)
    assert (total[range(4), shares.argmax(axis=1)] == total.max(axis=1)).all()
    sizes = f"{SMALL_MOE} --ep {ep} --dp {ep}"
    sizes += f" --set pp={pp} --set k={k}"
    results = {}
    for verb in ("estimate --bandwidth 25GB/s", "pattern"):
        for way in ("", f"--imbalance-from {path}"):
            out = StringIO()
            with redirect_stdout(out), redirect_stderr(out):
                code = main([*f"{verb} {sizes} {way}".split(), "--json"])
            if ratio > min(ep, 8 / k) and way:  # a trace of k = 1
                assert code == 2
                assert "has at most" in out.getvalue()
                return
            results[verb[:7], bool(way)] = json.loads(out.getvalue())
    means, most = {}, {}
    for way in (False, True):
        estimated = results["estimat", way]["data"]
        (sent,) = (
            row
            for row in results["pattern", way]["tables"]["sent"]
            if row["traffic"] == "EP"
        )
        assert sent["mean_rank_bytes"] == estimated["sent_bytes"]["ep"]
        # whole rows: of each exchange to each rank one more at most
        rows = 16 * ep * 512 * 2
        busiest = estimated["busiest_rank_bytes"]["ep"]
        assert abs(sent["busiest_rank_bytes"] - busiest) <= rows * way
        means[way], most[way] = sent["mean_rank_bytes"], sent["busiest_rank_bytes"]
    assert means[True] == means[False]
    assert busiest == pytest.approx(ratio * most[False])


def test_a_measured_imbalance_slows_an_estimate_as_a_given_one(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    # 8 experts on 2 ranks: 30 of 40 copies go to the first four
    demand = np.tile([10, 10, 5, 5, 5, 5, 0, 0], (3, 1, 2, 1))
    path = tmp_path / "skewed.h5"
    Trace.from_arrays(demand=demand, k=1).save(path)
    asked = f"{SMALL_MOE} --dp 2 --ep 2 --platform dgx-h100"
    measured, stated = (
        told(capsys, asked, by)
        for by in (f"--imbalance-from {path}", "--set imbalance=1.5")
    )
    assert measured == stated


def test_a_configuration_file_is_its_preset(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from tests.workload.test_config_json import CONFIGS, write

    path = write(tmp_path, CONFIGS["mixtral-8x7b"])
    rest = "--dp 8 --ep 8 --sequence 4096"
    for verb in ("estimate --platform dgx-h100", "pattern"):
        name, *more = verb.split()
        read, known = (
            found(capsys, name, *more, f"--model {model}", rest)
            for model in (path, "mixtral-8x7b")
        )
        assert read["tables"] == known["tables"]


# ---- practices -----------------------------------------------------------------------


def test_a_practice_is_named_and_sets_what_is_not_given(
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = "--model mixtral-8x7b --dp 64 --ep 8 --platform dgx-h100"
    plain = found(capsys, "estimate", asked)
    named = found(capsys, "estimate", asked, "--stack megatron-bridge")
    assert named["data"]["iteration_s"] < plain["data"]["iteration_s"]
    assert any("megatron-bridge" in note for note in named["notes"])
    kept = found(capsys, "estimate", asked, "--stack megatron-bridge --zero 0")
    memory = kept["data"]["memory_bytes"]["optimizer"]
    assert memory > named["data"]["memory_bytes"]["optimizer"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--dp 2", "more than one GPU needs a network"),
        ("--platform nowhere", "nowhere"),
        ("--dp 2 --platform h100", "did you mean dgx-h100"),
        ("--gpu H1000", "H1000"),
        ("--model gpt-9b", "gpt-9b"),
        ("--model gpt-3b --pp 64 --platform tg40", "chunk of a pipeline holds"),
        ("--overlap ends --dp 2 --platform tg40", "traffic that overlaps is one of"),
        ("--overlap dp=much", "is a number"),
        ("--dp 1,x --platform tg40", "dp is a number"),
        ("--best --platform tg40 --set memory_bytes=1e7", "fits into"),
        ("--recompute half", "recompute is one of"),
        ("--platform pinnacles --set utilization=0.4", "give --set peak_flops"),
        ("--platform pinnacles --dp 2", "give --set utilization"),
        ("--dp 2 --bandwidth 1GB/s,x", "a rate is a positive number"),
        ("--dp 2 --bandwidth -1GB/s", "a rate is a positive number"),
        ("--bandwidth no.csv --dp 2", "no.csv"),
        ("--dp 2 --nic 400Gbps", "give --platform"),
        ("--dp 2 --platform tg40 --stack torch", "--stack is one of"),
        ("--dp 2,4 --platform tg40 --sensitivity", "give no lists"),
        ("--imbalance-from no.h5 --dp 2 --bandwidth 1GB/s", "model is dense"),
        ("--model mixtral-8x7b --k 9", "selects 1 to 8 experts"),
        ("--layers 0", "layers must be at least 1"),
        ("--model none/config.json", "is read as JSON"),
        ("--micro-batch 0", "micro-batch must be at least 1"),
        ("--dp 4 --platform tg40 --set prefetch=2", "--set prefetch changes nothing"),
        (
            "--model mixtral-8x7b --dp 8 --ep 8 --platform dgx-h100 --set "
            "imbalance=4.5",
            "at most 4 x the mean",
        ),
    ],
)
def test_what_cannot_be_is_one_sentence(
    capsys: pytest.CaptureFixture[str], options: str, said: str
) -> None:
    assert said in refused(capsys, f"estimate {options}")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            "--project RUN --gpus 8,16 --efficiency 0.5,0.4,0.3",
            "one for each of --gpus",
        ),
        ("--project RUN --gpus 8 --efficiency 0", "efficiencies are numbers above 0"),
        ("--project RUN --gpus 8 --efficiency 0.5 --dp 2", "leave out --dp"),
        ("--project RUN --gpus 16", "numbers of ranks and the network's efficiency"),
        ("--calibrate RUN --model gpt-3b", "give the same"),
        ("--calibrate RUN --layers 2", "give the same"),
    ],
)
def test_a_captured_run_has_its_own_model(
    capsys: pytest.CaptureFixture[str], captured: Path, options: str, said: str
) -> None:
    asked = options.replace("RUN", str(captured))
    assert said in refused(capsys, f"estimate {asked}")
