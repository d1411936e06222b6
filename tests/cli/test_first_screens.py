"""The first screen of each verb whose output is the same on every machine.

``UPDATE_GOLDEN=1 pytest tests/cli/test_first_screens.py`` writes the files of
``tests/cli/golden`` anew; read their difference before it is committed.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest

from moetraffic.cli import main, output
from moetraffic.data import path
from moetraffic.replay import __main__ as replay
from moetraffic.replay.bench import __main__ as bench
from moetraffic.report.console.terminal import Paper
from tests.synthetic.runs import simulated, write

GOLDEN = Path(__file__).parent / "golden"

TRACES = {"run.h5": "golden-token-sample.h5", "other.h5": "golden-linked.h5"}
LONG = "long.h5"
"""Names of shipped traces in the folder where the verbs run."""

SIZE = re.compile(r"(written: [\w.]+, )[\d.]+ \w*B")

COMMANDS = {
    "analyze": "analyze run.h5",
    "analyze-long": "analyze long.h5 --layers 0",
    "export-anonymous": "export run.h5 --anonymous -o shared.h5",
    "bench": "bench all_reduce --show big-red-200 --nproc 8 --span 2 -b 300000",
    "compare": "compare run.h5 other.h5",
    "compare-against": "compare shuffled.h5 --against rerun1.h5 rerun2.h5 rerun3.h5",
    "estimate": "estimate --model mixtral-8x7b --dp 16 --ep 8 --platform dgx-h100",
    "estimate-best": "estimate --model gpt-3b --best --gpus 16 --platform polaris",
    "estimate-lists": "estimate --dp 1,2,4 --zero 0,1 --platform polaris",
    "estimate-stack": "estimate --model mixtral-8x7b --dp 64 --ep 8 --platform "
    "dgx-h100 --stack megatron-bridge",
    "evaluate": "evaluate long.h5 --policy rotation,max-weight,packets --layers 0 "
    "--iterations 0:24 --most 8",
    "export": "export",
    "fabric": "fabric run.h5 --oversubscription 2",
    "fabric-ratios": "fabric run.h5 --oversubscription 1,2",
    "generate": "generate --from top2-balanced-early -o made.h5 --iterations 4",
    "info": "info run.h5",
    "models": "models",
    "models-one": "models mixtral-8x7b",
    "pattern": "pattern --model mixtral-8x7b --dp 8 --ep 8",
    "pattern-lists": "pattern --model mixtral-8x7b --dp 8,16 --ep 8 --platform "
    "dgx-h100",
    "place": "place run.h5 --ep 2 -o placed.h5",
    "replay": "replay run.h5 --dry-run",
    "schedule": "schedule run.h5",
    "schedule-shifts": "schedule run.h5 other.h5",
}


@pytest.mark.parametrize("name", COMMANDS)
def test_the_first_screen_is_the_known_one(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(output, "console", Paper(width=80))
    for own, shipped in TRACES.items():
        shutil.copy(path(shipped), own)
    verb, *arguments = shlex.split(COMMANDS[name])
    if LONG in arguments:
        shutil.copy(path("run-top2-balanced.h5"), LONG)
    if "--against" in arguments:  # simulated reruns, and one whose order is random
        for seed, rerun in enumerate(arguments[2:]):
            write(Path(rerun), simulated(seed))
        write(Path(arguments[0]), np.random.default_rng(0).permutation(simulated(3)))
    programs = {"replay": replay.main, "bench": bench.main}
    code = programs[verb](arguments) if verb in programs else main([verb, *arguments])
    # the size of a file depends on libraries that compress
    shown = SIZE.sub(r"\1SIZE", capsys.readouterr().out)
    screen = f"$ moetraffic {COMMANDS[name]}\n{shown}exit code {code}\n"
    file = GOLDEN / f"{name}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        file.write_text(screen)
    assert screen == file.read_text()


def test_every_golden_screen_is_of_a_command() -> None:
    assert {file.stem for file in GOLDEN.iterdir()} == {*COMMANDS}
