"""Run the scenes once, and the kills once."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
Seen = Callable[[str], list[dict[str, Any]]]


def run(script: str, folder: Path) -> None:
    ran = subprocess.run(
        [sys.executable, HERE / script, folder],
        capture_output=True,
        text=True,
        timeout=230,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-4000:]


@pytest.fixture(scope="session")
def stage(once: Callable[[str, Callable[[Path], None]], Path]) -> Path:
    """The folder in which the scenes were played."""
    return once("scenes", lambda folder: run("scenes.py", folder))


@pytest.fixture(scope="session")
def seen(stage: Path) -> Seen:
    """What each rank of a scene saw."""

    def read(scene: str) -> list[dict[str, Any]]:
        files = sorted(stage.glob(f"{scene}-*.json"))
        return [json.loads(file.read_text()) for file in files]

    return read


@pytest.fixture(scope="session")
def killed(
    once: Callable[[str, Callable[[Path], None]], Path],
) -> list[dict[str, Any]]:
    """Captures whose ranks were killed at random times: what is known of each."""
    folder = once("killed", lambda folder: run("kills.py", folder))
    lines = (folder / "kills.jsonl").read_text().splitlines()
    told = [json.loads(line) for line in lines]
    return [{**one, "folder": str(folder / one["run"])} for one in told]
