"""However a writer ends, whatever is under its final name is whole, and nothing lost.

``crashes`` ends it at every call that changes the disk.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent


def endings(folder: Path, *options: object) -> list[dict[str, Any]]:
    ran = subprocess.run(
        [sys.executable, HERE / "crashes.py", folder, *map(str, options)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    lines = (folder / "endings.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def look(found: list[dict[str, Any]], ended: str) -> None:
    assert [one for one in found if one["wrong"]] == []
    assert [one["ended"] for one in found[:-1]] == [ended] * (len(found) - 1)
    assert found[-1]["ended"] == "through"


def test_windows_are_whole_or_absent(tmp_path: Path) -> None:
    found = endings(tmp_path, "commit", "kill")
    look(found, "killed")
    # three windows: open, write, fsync, rename, fsync of the folder ...
    assert len(found) > 15


@pytest.mark.slow
def test_windows_on_a_disk_that_fills_up(tmp_path: Path) -> None:
    look(endings(tmp_path, "commit", "full"), "refused")


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("scene", ["merge", "over"])
def test_a_merge_that_is_killed_anywhere(scene: str, part: int, tmp_path: Path) -> None:
    found = endings(tmp_path, scene, "kill", "--part", part, "--parts", 4)
    look(found, "killed")
    assert len(found) > 50


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("scene", ["merge", "over"])
def test_a_merge_onto_a_disk_that_fills_up(scene: str, tmp_path: Path) -> None:
    look(endings(tmp_path, scene, "full", "--parts", 4), "refused")


def test_a_trace_is_not_replaced_unasked(tmp_path: Path) -> None:
    found = endings(tmp_path, "beside", "kill")
    assert [one for one in found if one["wrong"]] == []
    # it is refused before anything is written
    assert found[-1]["ended"] == "refused"
