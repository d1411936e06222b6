"""Ranks made of a few lines of Python, and a look at which processes live."""

from __future__ import annotations

import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from moetraffic.launch import Outcome, launch

PRELUDE = """
import os, signal, sys, time
from pathlib import Path
from moetraffic.launch import heartbeat
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
beat = heartbeat.send
here = Path(os.environ["HERE"])
(here / f"pid-{rank}").write_text(str(os.getpid()))
def up():
    beat("ready")
    (here / f"up-{rank}").touch()
"""


def alive(pid: int) -> bool:
    """Whether a process runs; one that only waits to be reaped does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


@pytest.fixture
def is_alive() -> Callable[[int], bool]:
    return alive


@pytest.fixture
def wait_until() -> Callable[..., None]:
    def wait(true: Callable[[], Any], why: str, patience_s: float = 20.0) -> None:
        until = time.monotonic() + patience_s
        while not true():
            assert time.monotonic() < until, why
            time.sleep(0.02)

    return wait


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], list[str]]:
    """A command that runs the given lines after PRELUDE."""

    def make(body: str) -> list[str]:
        path = tmp_path / "ranks.py"
        path.write_text(PRELUDE + textwrap.dedent(body))
        return [sys.executable, str(path)]

    return make


@pytest.fixture
def run(tmp_path: Path, script: Callable[[str], list[str]]) -> Callable[..., Outcome]:
    """Launch these lines as ranks; afterwards no rank may be left."""

    def start(body: str, ranks: int = 2, **options: Any) -> Outcome:
        options.setdefault("start_deadline_s", 30.0)
        options.setdefault("operation_deadline_s", 30.0)
        options.setdefault("grace_s", 0.3)
        environment = {"HERE": str(tmp_path), **options.pop("environment", {})}
        outcome = launch(script(body), ranks=ranks, environment=environment, **options)
        pids = [int(p.read_text()) for p in tmp_path.glob("pid-*")]
        assert not [pid for pid in pids if alive(pid)]
        assert not [pid for pid in pids if _group_exists(pid)]
        return outcome

    return start


def _group_exists(group: int) -> bool:
    """Whether a process of the group runs that does not only wait to be reaped."""
    for process in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = process.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if fields[0] != "Z" and int(fields[2]) == group:
            return True
    return False
