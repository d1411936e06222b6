"""Run the scenes once, and the kills once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from moetraffic.capture.hook import native

HERE = Path(__file__).parent
Seen = Callable[[str], list[dict[str, Any]]]


def run(script: str, folder: Path, hook: str, *arguments: int) -> None:
    ran = subprocess.run(
        [sys.executable, HERE / script, folder, *map(str, arguments)],
        env={**os.environ, "MOETRAFFIC_HOOK": hook},
        capture_output=True,
        text=True,
        timeout=230,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-4000:]


# compiling the hook takes a minute
HOOKS = ["python", pytest.param("native", marks=pytest.mark.slow)]


@pytest.fixture(scope="session")
def compiled(once: Callable[[str, Callable[[Path], None]], Path]) -> None:
    """The compiled hook is there."""
    once("compiled", lambda _: print(native.build()))


def prepared(hook: str, request: pytest.FixtureRequest) -> str:
    """The kind of hook, compiled if that is the one."""
    if hook == "native":
        request.getfixturevalue("compiled")
    return hook


@pytest.fixture(scope="session", params=HOOKS)
def stage(
    once: Callable[[str, Callable[[Path], None]], Path], request: pytest.FixtureRequest
) -> Path:
    """The folder in which the scenes were played, with either hook."""
    hook = prepared(request.param, request)
    return once(f"scenes-{hook}", lambda folder: run("scenes.py", folder, hook))


@pytest.fixture(scope="session")
def seen(stage: Path) -> Seen:
    """What each rank of a scene saw."""

    def read(scene: str) -> list[dict[str, Any]]:
        files = sorted(stage.glob(f"{scene}-*.json"))
        return [json.loads(file.read_text()) for file in files]

    return read


def kills(
    hook: str, once: Callable[[str, Callable[[Path], None]], Path], runs: int, seed: int
) -> list[dict[str, Any]]:
    """Judged captures whose processes were killed at random times."""
    folder = once(
        f"killed-{hook}-{seed}",
        lambda folder: run("kills.py", folder, hook, runs, seed),
    )
    return [json.loads(line) for line in (folder / "kills.jsonl").open()]


@pytest.fixture(scope="session", params=HOOKS)
def killed(
    once: Callable[[str, Callable[[Path], None]], Path], request: pytest.FixtureRequest
) -> list[dict[str, Any]]:
    """Ten captures with either hook."""
    return kills(prepared(request.param, request), once, 10, 7)


@pytest.fixture(scope="session", params=HOOKS)
def campaign(
    once: Callable[[str, Callable[[Path], None]], Path], request: pytest.FixtureRequest
) -> list[dict[str, Any]]:
    """150 captures with either hook; 50 at a time, within the limit of a process."""
    hook = prepared(request.param, request)
    return [one for seed in (1, 2, 3) for one in kills(hook, once, 50, seed)]
