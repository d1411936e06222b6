"""However a merge ends, a whole trace is under its name, and no log is lost.

``crashes`` ends it at every call that changes the disk.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def endings(folder: Path, *options: object) -> list[dict[str, Any]]:
    ran = subprocess.run(
        [sys.executable, "-m", "tests.trace.crashes", folder, *map(str, options)],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    found: list[dict[str, Any]] = json.loads(ran.stdout)
    assert [one for one in found if one["wrong"]] == []
    return found


@pytest.mark.parametrize("parts", [23, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.timeout(1800)
def test_a_merge_that_is_killed_anywhere(parts: int, tmp_path: Path) -> None:
    found = endings(tmp_path, "kill", "--force", "--parts", parts)
    assert {one["ended"] for one in found[:-1]} == {"killed"}
    assert len(found) > 100 / parts


@pytest.mark.parametrize("parts", [23, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.timeout(1800)
def test_a_merge_onto_a_disk_that_fills_up(parts: int, tmp_path: Path) -> None:
    found = endings(tmp_path, "full", "--force", "--parts", parts)
    assert {one["ended"] for one in found[:-1]} == {"refused"}
    assert found[-1]["ended"] == "through"


def test_a_trace_is_not_replaced_unasked(tmp_path: Path) -> None:
    # it is refused before anything is written
    assert endings(tmp_path, "kill")[-1]["ended"] == "refused"
