"""What is recorded of programs that know nothing of it, however they end."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moetraffic.capture import command
from moetraffic.trace import Trace
from moetraffic.trace.merge.log_folder import log_folder, members
from moetraffic.trace.merge.merging import Merged, merge

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def played(once: Callable[[str, Callable[[Path], None]], Path]) -> Path:
    """The folder in which the programs ran."""

    def make(folder: Path) -> None:
        hook = command.variables(
            folder / "run.h5", force=False, names={"model": "mine"}
        )
        ran = subprocess.run(
            [sys.executable, HERE / "attachments.py", folder],
            env=command.environment(hook) | {"OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr[-4000:]

    return once("attachments", make)


def seen(folder: Path, world: int = 2, first: int = 0) -> list[Any]:
    files = [folder / f"{first + rank}.json" for rank in range(world)]
    return [json.loads(file.read_text()) for file in files]


def codes(folder: Path) -> list[int]:
    return [int(file.read_text()) for file in sorted(folder.glob("*.code"))]


def said(folder: Path) -> list[str]:
    every = "".join(file.read_text() for file in sorted(folder.glob("*.err")))
    return [line for line in every.splitlines() if line.startswith("moetraffic")]


def notes(folder: Path) -> set[str]:
    return {note.name for note in (folder / "notes").iterdir()}


def merged(folder: Path, name: str = "run.h5") -> Merged:
    return merge(log_folder(folder / name))


def exchanged(trace: Trace) -> list[list[list[int]]]:
    """The bytes of every all-to-all that all members recorded, in order of issue."""
    of = trace.complete(trace.find(operation="all_to_all", kind=None))
    in_order = of[np.argsort(trace.times(of)[0][:, 0], kind="stable")]
    matrices: list[list[list[int]]] = trace.wire(in_order).tolist()
    return matrices


def logged(logs: list[Any]) -> list[list[list[int]]]:
    """The same as the ranks noted it: ``[rank][step][peer]`` by step."""
    return [list(rows) for rows in zip(*logs, strict=True)]


def test_every_exchange_of_every_rank_is_recorded_exactly(played: Path) -> None:
    folder = played / "plain"
    result = merged(folder)
    assert codes(folder) == [0, 0]
    assert exchanged(result.trace) == logged(seen(folder))
    assert len(exchanged(result.trace)) == 5
    of = result.trace.find(operation="all_reduce", kind=None)
    assert result.trace.volume(of).tolist() == [[28, 28]]
    assert result.trace.meta.model == "mine"
    assert (result.missing, result.remarks, result.contradictions) == ((), (), ())
    assert (said(folder), notes(folder)) == ([], {"initialized", "begun"})


def test_a_program_that_destroys_nothing_is_recorded_to_its_end(played: Path) -> None:
    folder = played / "never_destroys"
    result = merged(folder)
    assert exchanged(result.trace) == logged(seen(folder, 1))
    assert (result.missing, result.remarks) == ((), ())


@pytest.mark.parametrize(
    ("scene", "why"),
    [
        ("raises", "ended by ValueError (the loss is not finite)"),
        ("raises_unheard", "ended by KeyError ('layer')"),
    ],
)
def test_an_exception_is_told_and_what_came_before_is_kept(
    played: Path, scene: str, why: str
) -> None:
    folder = played / scene
    result = merged(folder)
    assert codes(folder) == [1]
    assert exchanged(result.trace) == logged(seen(folder, 1))
    assert not result.missing
    assert why in " ".join(result.remarks)
    assert not result.trace.meta.complete
    said = (folder / "0.err").read_text()
    assert "Traceback" in said
    assert "moetraffic" not in said


def test_ranks_that_leave_without_a_word_cost_no_other_ranks_record(
    played: Path,
) -> None:
    folder = played / "leaves"
    result = merged(folder)
    assert codes(folder) == [0, 7, -9]
    of = result.trace.find(operation="all_to_all", kind=None)
    # what calls os._exit is flushed before
    assert result.trace.present(of)[:, :2].all()
    assert len(of) == len(seen(folder, 3)[0])
    # whether anything of the killed one was handed over in its milliseconds is open
    (told,) = result.missing
    assert told.startswith("rank 2 ")
    assert not result.trace.meta.complete


def test_the_records_of_ranks_that_sigterm_ends_are_kept(played: Path) -> None:
    folder = played / "terminated"
    result = merged(folder)
    assert codes(folder) == [-15, -15]
    assert exchanged(result.trace) == logged(seen(folder))
    assert [text[:7] for text in result.missing] == ["rank 0 ", "rank 1 "]
    assert not result.trace.meta.complete


def test_a_program_that_exits_in_its_own_handler_is_recorded_to_its_end(
    played: Path,
) -> None:
    folder = played / "handles"
    result = merged(folder)
    assert codes(folder) == [5]
    assert exchanged(result.trace) == logged(seen(folder, 1))
    assert not result.missing


def test_each_process_group_is_a_capture_of_its_own(played: Path) -> None:
    folder = played / "again"
    if not folder.exists():
        pytest.skip("torch 2.4 connects only one group by files")
    names = ["run.h5", "run-2.h5"]
    assert [p.name for p in members(folder / "run.h5")] == names
    for attempt, name in enumerate(names):
        result = merged(folder, name)
        logs = [log[attempt] for log in seen(folder)]
        assert exchanged(result.trace) == logged(logs)
        assert len(logs[0]) == attempt + 1
        assert result.trace.meta.complete


def test_forked_children_write_into_no_record_and_hold_none(played: Path) -> None:
    folder = played / "forks"
    result = merged(folder)
    assert codes(folder) == [0]
    assert exchanged(result.trace) == logged(seen(folder, 1))
    assert result.trace.meta.complete
    assert seen(folder, 1, first=10) == [[[0]]]  # no hook in a child


def test_a_recorder_of_the_programs_own_comes_first(played: Path) -> None:
    folder = played / "own"
    assert codes(folder) == [0, 0]
    assert len(said(folder)) == 1
    assert f"{folder.name}/own.h5, so moetraffic run records nothing" in said(folder)[0]
    assert "own" in notes(folder)
    with Trace.open(folder / "own.h5") as trace:
        assert exchanged(trace) == logged(seen(folder))
        assert len(trace.iterations) == 3
    assert not list(log_folder(folder / "run.h5").glob("rank-*"))


def test_training_goes_on_where_nothing_can_be_recorded(played: Path) -> None:
    folder = played / "refused"
    assert codes(folder) == [0, 0]
    assert [len(log) for log in seen(folder)] == [5, 5]
    assert len(said(folder)) == 1
    assert "this run is not captured" in said(folder)[0]
    assert notes(folder) == {"initialized", "refused"}


def test_children_of_multiprocessing_are_ranks_like_others(played: Path) -> None:
    folder = played / "multiprocesses"
    result = merged(folder)
    assert codes(folder) == [0]
    assert exchanged(result.trace) == logged(seen(folder, 2, first=10))
    assert result.trace.meta.complete
