"""Noise floors in the user's cache: the same values, and never in the way."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from moetraffic.analysis.noise import floors, moment_cache
from moetraffic.analysis.noise.floors import matrix_floors
from moetraffic.analysis.noise.null_model import NullModel

ROUTER = NullModel(experts=8, k=2, sources=4)


@pytest.fixture(autouse=True)
def _all_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(floors, "CACHED_CELLS", 0)
    monkeypatch.setattr("moetraffic.analysis.noise.null_model.MOST", 500)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def floor(tokens: int = 90) -> tuple[float, float]:
    """Simulate, or take from the file, as a new process would."""
    floors._moments.cache_clear()
    found = matrix_floors(("cv", "sparsity"), np.array([tokens]), ROUTER)["cv"]
    return float(found.mean[0]), float(found.std[0])


def test_the_file_of_a_configuration_saves_its_simulation(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first = floor()
    (file,) = tmp_path.rglob("*.json")
    stored = json.loads(file.read_text())
    assert set(stored) == {"cv", "sparsity"}
    monkeypatch.setattr(NullModel, "moments", None)  # is not called again
    assert floor() == first
    monkeypatch.undo()


def test_another_configuration_or_version_has_another_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert floor(90) != floor(91)
    assert len(list(tmp_path.rglob("*.json"))) == 2
    monkeypatch.setattr(moment_cache, "VERSION", -1)
    floor(90)
    assert len(list(tmp_path.rglob("*.json"))) == 3


@pytest.mark.parametrize(
    "damaged",
    [b"", b"{", b"[1]", b"null", b'{"cv": [1.0, 2.0]}', b'{"cv": "x"}', b"\xff"],
)
def test_a_damaged_file_is_computed_again(damaged: bytes, tmp_path: Path) -> None:
    first = floor()
    (file,) = tmp_path.rglob("*.json")
    whole = file.read_bytes()
    file.write_bytes(damaged)
    assert floor() == first
    assert file.read_bytes() == whole


def test_without_a_folder_that_can_be_written_nothing_is_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first = floor()
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/none")
    assert floor() == first
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert floor() == first
