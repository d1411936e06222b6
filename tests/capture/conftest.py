"""Run the scenes once, and the kills once."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from moetraffic.capture.hook import native

HERE = Path(__file__).parent
Told = dict[str, Any]
Seen = Callable[[str], list[Told]]
Once = Callable[[str, Callable[[Path], None]], Path]


def run(
    script: str, folder: Path, hook: str, *arguments: int, timeout_s: float = 230
) -> None:
    ran = subprocess.run(
        [sys.executable, HERE / script, folder, *map(str, arguments)],
        env={**os.environ, "MOETRAFFIC_HOOK": hook},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-4000:]


# compiling the hook takes a minute
HOOKS = ["python", pytest.param("native", marks=pytest.mark.slow)]


@pytest.fixture(scope="session")
def compiled(once: Once) -> None:
    """The compiled hook is there."""
    once("compiled", lambda _: print(native.build()))


def prepared(hook: str, request: pytest.FixtureRequest) -> str:
    """The kind of hook, compiled if that is the one."""
    if hook == "native":
        request.getfixturevalue("compiled")
    return hook


@pytest.fixture(scope="session", params=HOOKS)
def stage(once: Once, request: pytest.FixtureRequest) -> Path:
    """The folder in which a few scenes were played, with either hook."""
    hook = prepared(request.param, request)
    return once(f"scenes-{hook}", lambda folder: run("scenes.py", folder, hook, 1))


@pytest.fixture(scope="session", params=HOOKS)
def long_stage(once: Once, request: pytest.FixtureRequest) -> Path:
    """The folder in which the other scenes were played, for slow tests."""
    hook = prepared(request.param, request)
    return once(f"long-scenes-{hook}", lambda folder: run("scenes.py", folder, hook, 0))


@pytest.fixture(scope="session")
def seen(stage: Path) -> Seen:
    """What each rank of a scene saw."""
    return partial(told_of, stage)


@pytest.fixture(scope="session")
def long_seen(long_stage: Path) -> Seen:
    """What each rank of one of the other scenes saw."""
    return partial(told_of, long_stage)


def told_of(stage: Path, scene: str) -> list[Told]:
    files = sorted(stage.glob(f"{scene}-*.json"))
    return [json.loads(file.read_text()) for file in files]


def kills(script: str, hook: str, once: Once, part: str, runs: int) -> list[Told]:
    """Judged captures whose processes were killed at random times, of a fresh seed."""
    seed = random.SystemRandom().randrange(1 << 31)
    folder = once(
        f"{script}-{hook}-{part}",
        lambda folder: run(f"{script}.py", folder, hook, runs, seed, timeout_s=3000),
    )
    return [json.loads(line) for line in (folder / f"{script}.jsonl").open()]


@pytest.fixture(scope="session", params=HOOKS)
def killed(once: Once, request: pytest.FixtureRequest) -> list[Told]:
    """Four captures with either hook."""
    return kills("kills", prepared(request.param, request), once, "sample", 4)


@pytest.fixture(scope="session", params=HOOKS)
def campaign(once: Once, request: pytest.FixtureRequest) -> list[Told]:
    """150 captures with either hook."""
    return kills("kills", prepared(request.param, request), once, "campaign", 150)


@pytest.fixture(scope="session")
def launchers(once: Once) -> list[Told]:
    """28 captures by the real commands, 4 of each kind."""
    return kills("launcher_kills", "python", once, "campaign", 28)
