"""Any model's shape on the command line of ``estimate`` and ``pattern``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from moetraffic.cli import main
from moetraffic.patterns import time_model
from moetraffic.patterns.time_model import (
    A100,
    Architecture,
    Configuration,
    NodeLinks,
    System,
)
from tests.patterns.test_huggingface import CONFIGS, write


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
    model = Architecture.gpt(
        layers=96, hidden=12288, heads=96, sequence=2048, vocabulary=51200
    )
    config = Configuration(
        model=model, tp=8, pp=12, dp=2, global_batch=96, recompute="full"
    )
    links = NodeLinks.nominal(gpus=8, inside_bytes_s=300e9, nic_bytes_s=200e9)
    ours = time_model.estimate(config, System.of_gpu(A100, links))
    assert estimate["iteration_s"] == pytest.approx(float(ours.iteration), rel=1e-3)


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
    ],
)
def test_what_cannot_be_is_one_sentence(
    capsys: pytest.CaptureFixture[str], arguments: str, words: str
) -> None:
    assert main(arguments.split()) == 2
    assert words in " ".join(capsys.readouterr().err.split())
