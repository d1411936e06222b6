"""Labels of ordinary, unmodified programs under ``moetraffic run`` are right.

Every program logs its own all-to-alls.  No label may differ from the log; in the
aspects of :data:`UNKNOWN` it may be unknown.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from .shapes.stage import PROGRAMS, start
from .shapes.verdict import judge

FEW = [name for name, program in PROGRAMS.items() if program.few]
LAYERS = {"layer", "phase", "micro-batch"}
UNKNOWN = {
    # all-to-alls of equal parts, which have no counts
    "expert-choice": LAYERS,
    "sequence-parallel": LAYERS,
    # no module makes the calls
    "no-module": LAYERS,
    # the first iteration has a forward pass without a backward pass
    "gpipe": LAYERS | {"group"},
    "pipeline-registered": LAYERS | {"group"},
    "warmed-up": LAYERS,
}
"""Aspects that may be unknown; those of other programs are named in full."""
Once = Callable[[str, Callable[[Path], None]], Path]


def check(folder: Path, name: str) -> None:
    verdict = judge(folder)
    unknown = {aspect for aspect, number in verdict.unnamed.items() if number}
    assert not verdict.faults, (verdict.examples, verdict.schedule)
    assert unknown <= UNKNOWN.get(name, set()), verdict.schedule


@pytest.fixture(scope="session")
def few(once: Once) -> Path:
    return once("programs-few", lambda folder: start(folder, FEW, ["run"]))


@pytest.mark.parametrize("name", FEW)
def test_an_ordinary_program(few: Path, name: str) -> None:
    check(few / f"{name}-run", name)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in PROGRAMS if name not in FEW])
def test_every_program(tmp_path: Path, name: str) -> None:
    if name.startswith("trainer") and not importlib.util.find_spec("transformers"):
        pytest.skip("transformers is not installed")
    start(tmp_path, [name], ["run"])
    check(tmp_path / f"{name}-run", name)


@pytest.mark.slow
def test_both_ranks_of_a_restart_are_in_one_trace(
    tmp_path: Path, moetraffic: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", 2]
    ran = moetraffic(
        *("run", "-o", tmp_path / "run.h5", "--", *launcher, "--max-restarts", 1),
        *("--standalone", "-m", "tests.capture.programs.elastic", tmp_path),
        cwd=Path(__file__).parents[2],
    )
    assert (tmp_path / "run-2.h5").exists(), ran.stderr
    (tmp_path / "run-2.h5").rename(tmp_path / "life1" / "run.h5")
    check(tmp_path / "life1", "elastic")
