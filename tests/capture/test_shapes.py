"""What a trace says of a training is so, whatever the training's shape.

Every shape logs its own collectives.  What a trace leaves unnamed is no error; what it
names otherwise than the program is.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from moetraffic.launch import hook_environment

from .shapes.stage import MODES, SHAPES, plays
from .shapes.verdict import ASPECTS, Verdict, judge

ROOT = Path(__file__).parents[2]
FEW = [name for name, shape in SHAPES.items() if shape.few]
WRONG_TODAY = {
    "inference:run": "steps are unknown, and later steps become layers 3, 4 ...",
    "auto-ep": "layers are numbered from 1",
    "background-thread": "backward calls are named forward, and get other layers",
    "dense": "all-to-alls of sequence parallelism are named dispatch and combine",
    "mtp": "layers of an evaluation without the last MoE block are rotated by one",
    "nan-loss:run": "an all-reduce of a step without backward moves to the next",
    "overflow:run": "a step that the scaler skips is merged with the next",
    "os-exit": "os._exit loses the last records",
    "optimizers-in-backward": "every optimizer within a backward pass ends a step",
    "overlapped": "interleaved micro-batches: every layer is named 0",
    "two-chunks": "alternating chunks: layers 0 to 5 in place of 0 to 2",
    "interleaved": "virtual stages: layers are numbered as if the stages were plain",
}
"""By shape, or shape and mode: what is wrong."""


def play(folder: Path, asked: Sequence[str]) -> None:
    hook = hook_environment.variables(folder / "unused.h5", force=False, names={})
    ran = subprocess.run(
        [sys.executable, "-m", "tests.capture.shapes.stage", folder, *asked],
        env=hook_environment.environment(hook) | {"OMP_NUM_THREADS": "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-4000:]


Once = Callable[[str, Callable[[Path], None]], Path]


@pytest.fixture(scope="session")
def few(once: Once) -> Path:
    asked = plays(FEW, ("bare", "run"))
    return once("shapes-few", lambda folder: play(folder, asked))


@pytest.fixture
def rest(once: Once, request: pytest.FixtureRequest) -> Callable[[str], Path]:
    """Each shape by itself, in the modes that the few are not played in."""

    def played(name: str) -> Path:
        asked = plays([name], MODES)
        return once(f"shapes-{name}", lambda folder: play(folder, asked))

    return played


def check(folder: Path, name: str, mode: str) -> None:
    verdict = judge(folder / f"{name}-{mode}", folder / f"{name}-bare")
    for wrong in (f"{name}:{mode}", name):
        if wrong in WRONG_TODAY and faults(verdict):
            pytest.xfail(WRONG_TODAY[wrong])
    assert not faults(verdict), (verdict.examples, verdict.schedule, verdict.missing)


def faults(verdict: Verdict) -> dict[str, int]:
    found = {
        "absent": verdict.absent,
        "bytes": verdict.bytes_wrong,
        "losses": not verdict.losses_equal,
        **{aspect: verdict.wrong[aspect] for aspect in ASPECTS},
    }
    return {what: n for what, n in found.items() if n}


@pytest.mark.parametrize("name", FEW)
def test_an_unmodified_program(few: Path, name: str) -> None:
    check(few, name, "run")


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES[1:])
@pytest.mark.parametrize("name", SHAPES)
def test_every_shape(rest: Callable[[str], Path], name: str, mode: str) -> None:
    check(rest(name), name, mode)


def test_shapes_are_enough() -> None:
    assert len(FEW) == 8
