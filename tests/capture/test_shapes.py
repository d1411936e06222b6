"""What a trace says of a training is so, whatever the training's shape.

Every shape logs its own collectives.  What a trace leaves unnamed is no error; what it
names otherwise than the program is.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from .shapes.stage import MODES, SHAPES, start
from .shapes.verdict import judge

FEW = [name for name, shape in SHAPES.items() if shape.few]
Once = Callable[[str, Callable[[Path], None]], Path]


@pytest.fixture(scope="session")
def few(once: Once) -> Path:
    return once("shapes-few", lambda folder: start(folder, FEW, ("bare", "run")))


@pytest.fixture
def rest(once: Once, request: pytest.FixtureRequest) -> Callable[[str], Path]:
    """Each shape by itself, in the modes that the few are not played in."""

    def played(name: str) -> Path:
        return once(f"shapes-{name}", lambda folder: start(folder, [name], MODES))

    return played


def check(folder: Path, name: str, mode: str) -> None:
    verdict = judge(folder / f"{name}-{mode}", folder / f"{name}-bare")
    assert not verdict.faults, (verdict.examples, verdict.schedule, verdict.missing)


@pytest.mark.parametrize("name", FEW)
def test_an_unmodified_program(few: Path, name: str) -> None:
    check(few, name, "run")


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES[1:])
@pytest.mark.parametrize("name", SHAPES)
def test_every_shape(rest: Callable[[str], Path], name: str, mode: str) -> None:
    check(rest(name), name, mode)


def test_the_page_lists_every_shape() -> None:
    assert len(FEW) == 2
    assert len(SHAPES) >= 25
    page = (Path(__file__).parents[2] / "docs" / "own-run.md").read_text()
    table = page.split("<!-- shapes")[1].split("<!-- end")[0]
    assert [shape.title for shape in SHAPES.values() if shape.title not in table] == []
