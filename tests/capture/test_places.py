"""The place that a capture writes to gives way; the training goes on."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from moetraffic.errors import MoetrafficError
from moetraffic.trace import Trace
from moetraffic.trace.merge.merging import merge

HERE = Path(__file__).parent
pytestmark = pytest.mark.slow


def play(folder: Path, case: str) -> str:
    ran = subprocess.run(
        [sys.executable, HERE / "places.py", folder, case],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    return ran.stdout


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, of a megabyte."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "none", folder],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip("mounting a file system needs rights that this user has not")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_two_captures_into_one_folder(tmp_path: Path) -> None:
    said = play(tmp_path, "again")
    assert "steps: 2000" in said
    assert "second: refused: only one capture can write to a folder at a time" in said
    with Trace.open(tmp_path / "run.h5") as trace:
        assert len(trace.iterations) == 2000
        assert trace.meta.complete


def test_a_folder_that_vanishes(tmp_path: Path) -> None:
    said = play(tmp_path, "vanish")
    assert "steps: 2000" in said
    assert "Traceback" not in said
    assert "was removed" in said
    if (tmp_path / "run.h5").exists():
        with Trace.open(tmp_path / "run.h5") as trace:
            assert not trace.meta.complete


def test_a_place_that_is_read_only(small: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", small], check=True)
    said = play(small, "calm")
    # refused before the first step, and not after the last
    assert "Read-only file system): choose a folder that you may write to" in said
    assert "steps: 0" in said
    assert list(small.iterdir()) == []


def test_a_disk_that_fills_up(small: Path) -> None:
    said = play(small, "fill")
    assert "steps: 2000" in said
    assert "cannot be written" in said, said
    merged = merge(small / "run.h5.logs")
    kept = merged.trace.steps.iteration
    assert kept.tolist() == list(range(len(kept)))
    assert len(kept) >= 3
    assert not merged.trace.meta.complete
    with pytest.raises(MoetrafficError, match=r"cannot be written|exists"):
        merged.trace.save(small / "run.h5")
