"""Any model's shape on the command line of ``estimate`` and ``pattern``."""

from __future__ import annotations

import json
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from moetraffic.analysis.load import rank_shares
from moetraffic.cli import main
from moetraffic.patterns import preset, time_model
from moetraffic.patterns.time_model import (
    A100,
    Configuration,
    NodeLinks,
    System,
)
from moetraffic.trace import Trace
from tests.patterns.presets.test_huggingface import CONFIGS, write


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    assert main([*arguments, "--json"]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def test_a_configuration_file_is_its_preset(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = str(write(tmp_path, CONFIGS["mixtral-8x7b"]))
    rest = ("--dp", "8", "--ep", "8", "--sequence", "4096", "--micro-batch", "1")
    for verb in (("estimate", "--platform", "dgx-h100"), ("pattern",)):
        read, known = (
            told(capsys, *verb, "--model", model, *rest)
            for model in (path, "mixtral-8x7b")
        )
        left = {"model", "name"}
        assert {n: v for n, v in read.items() if n not in left} == {
            n: v for n, v in known.items() if n not in left
        }


def test_sizes_on_the_command_line_are_those_of_the_model(
    capsys: pytest.CaptureFixture[str],
) -> None:
    # GPT-3 175B from a preset of another size, as SC'21's equation 2 counts it
    sizes = ("--layers", "96", "--hidden", "12288", "--heads", "96", "--vocab", "51200")
    split = ("--tp", "8", "--pp", "12", "--dp", "2", "--micro-batch", "1")
    found = told(
        capsys,
        *("estimate", *sizes, "--sequence", "2048", *split, "--global-batch", "96"),
        *("--platform", "dgx-a100", "--recompute", "full"),
    )
    estimate = found["estimate"]
    assert isinstance(estimate, dict)
    model = replace(
        preset("gpt-1.3b").model, layers=96, hidden=12288, heads=96, vocabulary=51200
    )
    config = Configuration(
        **{"model": model, "tp": 8, "pp": 12, "dp": 2, "global_batch": 96},
        recompute="full",
        fused_attention=True,  # as usual on A100s
    )
    assert found["fused_attention"] is True
    # SC'21, equation 2
    assert found["parameters"]["total"] == pytest.approx(174.6e9, rel=2e-3)
    links = NodeLinks.nominal(gpus=8, inside_bytes_s=300e9, nic_bytes_s=200e9)
    ours = time_model.estimate(config, System.of_gpu(A100, links))
    assert estimate["iteration_s"] == pytest.approx(float(ours.iteration), rel=1e-3)


def test_a_sweep_over_models_or_bandwidths_is_each_alone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    split = ("--tp", "2", "--dp", "4", "--global-batch", "64", "--micro-batch", "1")
    names = ("megatron-1.7b", "bert-large")
    swept = told(
        capsys,
        *("estimate", "--sweep", "size", "--sizes", ",".join(names), *split),
        *("--platform", "dgx-a100"),
    )["estimate"]
    alone = [
        told(capsys, "estimate", "--model", name, *split, "--platform", "dgx-a100")
        for name in names
    ]
    assert isinstance(swept, dict)
    assert swept["iteration_s"] == [one["estimate"]["iteration_s"] for one in alone]  # type: ignore[index]
    rates = told(
        capsys, "estimate", "--sweep", "bandwidth", "--sizes", "5GB/s,50GB/s", *split
    )["estimate"]
    assert isinstance(rates, dict)
    slow, fast = rates["dp_s"]
    assert slow == pytest.approx(10 * fast)


SMALL_MOE = ("--model", "mixtral-8x7b", "--layers", "4", "--hidden", "512")
SMALL_MOE = (*SMALL_MOE, "--heads", "8", "--kv-heads", "8", "--sequence", "256")


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
    of = [*SMALL_MOE, "--k", str(k), "--ep", str(ep), "--dp", str(ep), "--pp", str(pp)]
    found = {}
    for verb in (["estimate", "--bandwidth", "25GB/s"], ["pattern"]):
        for way in ((), ("--imbalance-from", str(path))):
            out = StringIO()
            with redirect_stdout(out), redirect_stderr(out):
                code = main([*verb, *of, *way, "--json"])
            if ratio > min(ep, 8 / k) and way:  # a trace of k = 1
                assert code == 2
                assert "has at most" in out.getvalue()
                return
            found[verb[0], bool(way)] = json.loads(out.getvalue())
    for way in (False, True):
        estimated = found["estimate", way]["estimate"]
        traffic = found["pattern", way]["traffic"]["EP"]
        assert traffic["sent_bytes"] == estimated["sent_bytes"]["ep"]
        # whole rows: of each exchange to each rank one more at most
        rows = 16 * ep * 512 * 2
        busiest = estimated["busiest_rank_bytes"]["ep"]
        assert abs(traffic["busiest_rank_bytes"] - busiest) <= rows * way
        if not way:
            even = traffic
    assert traffic["sent_bytes"] == even["sent_bytes"]
    assert busiest == pytest.approx(ratio * even["busiest_rank_bytes"])


def test_measured_imbalance_slows_an_estimate_as_a_given_one(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    # 8 experts on 2 ranks: 30 of 40 copies go to the first four
    demand = np.tile([10, 10, 5, 5, 5, 5, 0, 0], (3, 1, 2, 1))
    path = tmp_path / "skewed.h5"
    Trace.from_arrays(demand=demand, k=1).save(path)
    asked = ("estimate", *SMALL_MOE, "--dp", "2", "--ep", "2", "--platform", "dgx-h100")
    measured, stated = (
        told(capsys, *asked, *by)
        for by in (("--imbalance-from", str(path)), ("--imbalance", "1.5"))
    )
    assert measured["estimate"] == stated["estimate"]
    layout = ("--dp", "2", "--ep", "2", "--imbalance-from", str(path), "--json")
    assert main(["pattern", *SMALL_MOE, *layout]) == 0
    traffic = json.loads(capsys.readouterr().out)["traffic"]["EP"]
    busiest = stated["estimate"]["busiest_rank_bytes"]["ep"]  # type: ignore[index]
    assert traffic["busiest_rank_bytes"] == busiest


def test_states_and_protocols_are_inputs(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("estimate", "--dp", "16", "--platform", "dgx-a100")
    lean, full = (told(capsys, *asked, "--state-bytes", n) for n in ("8", "12"))
    states = [each["estimate"]["memory_bytes"]["optimizer"] for each in (lean, full)]  # type: ignore[index]
    assert states[1] == pytest.approx(1.5 * states[0])
    slow, fast = (told(capsys, *asked, "--protocol", n) for n in ("IPoIB", "RDMA"))
    assert slow["estimate"]["dp_s"] > 2 * fast["estimate"]["dp_s"]  # type: ignore[index]


EP = "--model mixtral-8x7b --dp 8"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("estimate --imbalance-from no.h5 --dp 2 --bandwidth 1GB/s", "model is dense"),
        (
            f"estimate {EP} --platform dgx-h100 --ep 1 --imbalance 1.5",
            "at most 1 x the mean",
        ),
        (
            f"estimate {EP} --ep 8 --platform dgx-h100 --imbalance 4.5",
            "at most 4 x the mean",
        ),  # 8 experts, k 2
        (f"pattern {EP} --ep 1 --imbalance-from no.h5", "but ep is 1"),
        (
            f"estimate {EP} --platform dgx-h100 --ep 1 --imbalance-from no.h5",
            "but ep is 1",
        ),
        ("estimate --layers 0", "layers must be at least 1"),
        ("estimate --model mixtral-8x7b --k 9", "selects 1 to 8 experts"),
        ("pattern --hidden 100 --heads 33 --dp 2", "heads must divide hidden"),
        ("estimate --model none/config.json", "is read as JSON"),
        ("estimate --platform dgx-h100 --gpu A100", "--platform and --gpu give"),
        ("estimate --platform pinnacles --dp 2", "give --utilization"),
        ("estimate --gpu H1000", "H1000"),
        ("estimate --protocol RDMA --dp 2", "without --platform"),
        ("estimate --platform pinnacles --utilization .4 --dp 2", "are not published"),
        ("estimate --sweep size --sizes gpt-9b --dp 1", "gpt-9b"),
        ("estimate --sweep size --sizes tiny --model tiny", "--model give the same"),
        ("estimate --sweep bandwidth --sizes fast --dp 2", "fast"),
        (
            "estimate --imbalance-from none.h5 --imbalance 2",
            "--imbalance give the same",
        ),
    ],
)
def test_what_cannot_be_is_one_sentence(
    capsys: pytest.CaptureFixture[str], arguments: str, words: str
) -> None:
    assert main(arguments.split()) == 2
    assert words in " ".join(capsys.readouterr().err.split())


def test_layouts_without_expert_parallelism_are_searched_with_an_imbalance(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Their only rank has the mean load."""
    asked = ("estimate", *SMALL_MOE, "--best", "--gpus", "8", "--platform", "dgx-h100")
    even, uneven = (
        told(capsys, *asked, "--ep", "1", *way) for way in ((), ("--imbalance", "1.5"))
    )
    assert even["best"] == uneven["best"]
