"""Comparison of two sets of figures by ``benchmarks/parity.py``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(scope="module")
def parity() -> Iterator[ModuleType]:
    sys.path.insert(0, str(BENCHMARKS))
    try:
        yield import_module("parity")
    finally:
        sys.path.remove(str(BENCHMARKS))


def stored(parity: ModuleType, value: object) -> object:
    return dict(parity.flat("key", value))["key"]


def test_equal_figures_have_no_difference(parity: ModuleType) -> None:
    figures = {"a/trace/x": 3, "a/trace/y": [1, "b", "nan"], "a/fabric/z": 0.1}
    assert parity.differences(figures, dict(figures)) == []
    close = figures | {"a/fabric/z": 0.1 * (1 + 1e-12)}
    assert parity.differences(figures, close) == []


def test_missing_new_and_other_figures_are_listed_with_their_size(
    parity: ModuleType,
) -> None:
    before = {"a/trace/bytes": 100, "a/trace/gone": 1, "a/fabric/time": 2.0}
    after = {"a/trace/bytes": 101, "a/trace/new": 5, "a/fabric/time": 2.5}
    fabric, size, gone, new = parity.differences(before, after)
    assert fabric == "a/fabric/time: 2.0 -> 2.5 (+0.5, +0.25 of it)"
    assert size == "a/trace/bytes: 100 -> 101 (+1, +0.01 of it)"
    assert gone.startswith("a/trace/gone: missing")
    assert new.startswith("a/trace/new: new")


@pytest.mark.parametrize(
    ("before", "after", "named"),
    [
        (1, True, "True"),  # another type
        (1, "1", "'1'"),
        ([1, 2], [1, 3], "[1] 2 -> 3"),
        ([1, 2], [1], "[1, 2] -> [1]"),
        (np.array([3, 1]), np.array([1, 3]), "sha256"),  # the same sums
        (np.array([3, 1]), np.array([[3, 1]]), "shape"),
        (np.array([0.5, 2.0]), np.array([2.0, 0.5]), "by_place"),
        (np.array([1.0, np.nan]), np.array([1.0, 0.0]), "known"),
        (iter(["a", "b"]), iter(["b", "a"]), "sha256"),
    ],
)
def test_differences_are_found_in_every_kind_of_value(
    parity: ModuleType, before: object, after: object, named: str
) -> None:
    both = stored(parity, before), stored(parity, after)
    assert named in parity.difference(*both, parity.TOLERANCE)


def test_sums_that_cancel_are_compared_by_the_size_of_their_terms(
    parity: ModuleType,
) -> None:
    values = np.array([1e6, -1e6, 1e-6])
    both = stored(parity, values), stored(parity, values + 1e-9)
    assert parity.difference(*both, parity.TOLERANCE) == ""


def test_permitted_changes_are_left_out(parity: ModuleType, tmp_path: Path) -> None:
    before = {"a/trace/x": 100, "a/analyze/floor": 1.0, "b/analyze/floor": 1.0}
    after = {"a/analyze/floor": 1.01, "b/analyze/floor": 1.2}
    file = tmp_path / "changes.toml"
    file.write_text(
        '[[change]]\nkeys = "*/trace/*"\nreason = "gone"\n'
        '[[change]]\nkeys = "*/floor"\nreason = "another model"\ntolerance = 0.05\n'
    )
    (found,) = parity.differences(before, after, parity.permitted_changes(file))
    assert found.startswith("b/analyze/floor: 1.0 -> 1.2")


def test_a_change_without_a_reason_is_refused(
    parity: ModuleType, tmp_path: Path
) -> None:
    file = tmp_path / "changes.toml"
    file.write_text('[[change]]\nkeys = "*"\n')
    with pytest.raises(SystemExit, match="reason"):
        parity.permitted_changes(file)


def test_the_exit_code_is_of_the_rooms_that_are_compared(
    parity: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [tmp_path / "before.json.gz", tmp_path / "after.json"]
    parity.write(paths[0], {"a/trace/x": 1, "a/fabric/y": 2})
    parity.write(paths[1], {"a/trace/x": 1, "a/fabric/y": 3})
    line = ["compare", *map(str, paths)]
    assert parity.main(line) == 1
    assert "a/fabric/y: 2 -> 3" in capsys.readouterr().out
    assert parity.main([*line, "--only", "trace"]) == 0


def test_the_permitted_changes_of_the_repository_can_be_read(
    parity: ModuleType,
) -> None:
    changes = parity.permitted_changes(parity.CHANGES)
    assert all(change["reason"] for change in changes)


def test_the_kept_figures_are_of_known_rooms(parity: ModuleType) -> None:
    figures = parity.read(BENCHMARKS / "results" / "parity.json.gz", [])
    assert {key.split("/")[1] for key in figures} == set(parity.ROOMS)
