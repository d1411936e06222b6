"""Ranks made of a few lines of Python, and a look at which processes live."""

from __future__ import annotations

import os
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from moetraffic.launch.blame import process_state
from moetraffic.launch.ranks import Outcome, launch

PRELUDE = """
import os, signal, sys, time
from pathlib import Path
from moetraffic.launch.board import Cause, State, own
rank, world, row = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), own()
here = Path(os.environ["HERE"])
(here / f"pid-{rank}").write_text(str(os.getpid()))
def up():
    row.note(state=State.READY)
    (here / f"up-{rank}").touch()
"""


@pytest.fixture
def wait_until() -> Callable[..., None]:
    def wait(true: Callable[[], Any], why: str) -> None:
        until = time.monotonic() + 20.0
        while not true():
            assert time.monotonic() < until, why
            time.sleep(0.02)

    return wait


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], list[str]]:
    """A program that runs the given lines after PRELUDE."""

    def make(body: str) -> list[str]:
        path = tmp_path / "ranks.py"
        path.write_text(PRELUDE + textwrap.dedent(body))
        return [str(path)]

    return make


@pytest.fixture
def run(tmp_path: Path, script: Callable[[str], list[str]]) -> Callable[..., Outcome]:
    """Launch these lines as ranks; afterwards no process of them may be left."""

    def start(body: str, ranks: int = 2, **options: Any) -> Outcome:
        options = {"start_s": 30.0, "silence_s": 30.0, "grace_s": 0.3, **options}
        environment = {"HERE": str(tmp_path), **options.pop("environment", {})}
        outcome = launch(script(body), ranks=ranks, environment=environment, **options)
        for path in tmp_path.glob("pid-*"):
            pid = int(path.read_text())
            assert process_state(pid) == "ended"
            with pytest.raises(ProcessLookupError):
                os.killpg(pid, 0)
        return outcome

    return start
