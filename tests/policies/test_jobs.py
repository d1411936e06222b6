"""Traces that share the links of a network are evaluated together."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from moetraffic import Trace
from moetraffic.cli import main


def runs(rng: np.random.Generator, count: int = 2, steps: int = 24) -> list[Trace]:
    made = []
    for _ in range(count):
        share = rng.dirichlet(np.full(4, 2.0), size=(1, 4))
        demand = rng.multinomial(500, share, size=(steps, 1, 4))
        made.append(Trace.from_arrays(demand, row_bytes=4096))
    return made


def test_the_verb_evaluates_traces_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = []
    for number, run in enumerate(runs(np.random.default_rng(), steps=16)):
        paths.append(str(tmp_path / f"{number}.h5"))
        run.save(paths[-1])
    asked = ["evaluate", *paths, "--policy", "unshifted,cassini", "--most", "4"]
    assert main([*asked, "--json"]) == 0
    (together,) = json.loads(capsys.readouterr().out)["runs"]
    assert {s["family"] for s in together["scores"]} == {"jobs"}
    assert main([*asked[:2], *asked[3:]]) == 2
    assert "two or more" in capsys.readouterr().err
