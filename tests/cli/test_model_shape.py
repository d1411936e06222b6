"""Any model's shape on the command line of ``estimate`` and ``pattern``."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from moetraffic.analysis.skew.rank_imbalance import rank_imbalance
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


def test_measured_imbalance_is_that_of_the_busiest_rank(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    # 4 experts on 2 ranks: 30 of 40 copies go to the first two
    demand = np.tile([20, 10, 5, 5], (3, 1, 2, 1))  # iterations, layers, ranks, experts
    trace = Trace.from_arrays(demand=demand, k=1)
    path = tmp_path / "skewed.h5"
    trace.save(path)
    assert rank_imbalance(trace, 2) == pytest.approx(1.5)
    assert rank_imbalance(trace, 4) == pytest.approx(2.0)
    split = ("--dp", "2", "--ep", "2", "--platform", "dgx-h100")
    asked = ("estimate", "--model", "tiny-switch", *split)
    measured, given = (
        told(capsys, *asked, *by)
        for by in (("--imbalance-from", str(path)), ("--imbalance", "1.5"))
    )
    assert measured["estimate"] == given["estimate"]
    ways = ("--dp", "2", "--ep", "2", "--dispatch", "dropless")
    pattern = ("pattern", "--model", "tiny-switch", *ways)
    uneven = told(capsys, *pattern, "--imbalance-from", str(path))
    matrix = np.array(uneven["traffic"]["EP"]["matrix_bytes"])  # type: ignore[index]
    even = told(capsys, *pattern)["traffic"]["EP"]["matrix_bytes"]  # type: ignore[index]
    assert matrix.sum() == np.sum(even)
    assert (matrix == matrix.T).all()  # what goes out comes back: 3/4 and 1/4 of a row


def test_states_and_protocols_are_inputs(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("estimate", "--dp", "16", "--platform", "dgx-a100")
    lean, full = (told(capsys, *asked, "--state-bytes", n) for n in ("8", "12"))
    states = [each["estimate"]["memory_bytes"]["optimizer"] for each in (lean, full)]  # type: ignore[index]
    assert states[1] == pytest.approx(1.5 * states[0])
    slow, fast = (told(capsys, *asked, "--protocol", n) for n in ("IPoIB", "RDMA"))
    assert slow["estimate"]["dp_s"] > 2 * fast["estimate"]["dp_s"]  # type: ignore[index]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("estimate --layers 0", "layers must be at least 1"),
        ("estimate --k 2", "a dense model has no experts"),
        ("estimate --model mixtral-8x7b --k 9", "selects 1 to 8 experts"),
        ("pattern --hidden 100 --heads 33 --dp 2", "heads must divide hidden"),
        ("estimate --model none/config.json", "is read as JSON"),
        ("estimate --platform dgx-h100 --gpu A100", "a platform has its own GPUs"),
        ("estimate --platform pinnacles --dp 2", "give --utilization"),
        ("estimate --gpu H1000", "H1000"),
        ("estimate --protocol RDMA --dp 2", "without --platform"),
        ("estimate --platform pinnacles --utilization .4 --dp 2", "are not published"),
        ("estimate --sweep size --sizes gpt-9b --dp 1", "gpt-9b"),
        ("estimate --sweep size --sizes tiny --model tiny", "are the models"),
        ("estimate --sweep bandwidth --sizes fast --dp 2", "fast"),
        ("estimate --imbalance-from none.h5 --imbalance 2", "measures it"),
    ],
)
def test_what_cannot_be_is_one_sentence(
    capsys: pytest.CaptureFixture[str], arguments: str, words: str
) -> None:
    assert main(arguments.split()) == 2
    assert words in " ".join(capsys.readouterr().err.split())
