"""A folder of logs is merged and removed, or kept with a statement of what it lacks."""

from __future__ import annotations

import fcntl
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from moetraffic.cli import main
from moetraffic.errors import CaptureError
from moetraffic.trace import ROUTING, Trace
from moetraffic.trace.merge import merging
from moetraffic.trace.merge.log_format import log_file, state_file
from moetraffic.trace.merge.merging import merge, merge_into
from moetraffic.trace.merge.rank_log import read_rank
from moetraffic.trace.merge.rank_record import RankRecord
from tests.watch.logs import LAYERS, RankWriter, routed, write_run

STEPS = 9


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Logs of two ranks that were closed."""
    there = tmp_path / "run.h5.logs"
    for writer in write_run(there, STEPS):
        writer.close()
    return there


def test_a_whole_folder_is_merged_and_removed(folder: Path, tmp_path: Path) -> None:
    merged = merge_into(folder, tmp_path / "run.h5", force=False)
    assert (merged.missing, merged.contradictions) == ((), ())
    assert not folder.exists()
    with Trace.open(tmp_path / "run.h5") as trace:
        assert trace.meta.complete
        assert trace.meta.nodes == ("node0", "node1")
        for layer in range(LAYERS):
            calls = trace.find(operation=ROUTING, layer=layer)
            demand = [[routed(r, s, layer) for r in (0, 1)] for s in range(STEPS)]
            assert np.array_equal(trace.demand(calls), demand)


def test_a_killed_rank_is_named_and_its_logs_are_kept(tmp_path: Path) -> None:
    folder = tmp_path / "run.h5.logs"
    survivor, killed = write_run(folder, STEPS)
    survivor.close()
    killed.state(STEPS + 2)
    merged = merge_into(folder, tmp_path / "run.h5", force=False)
    assert merged.missing == (
        "rank 1 was killed: its record ends after iteration 8, 2 later steps and the "
        "one under way are lost",
    )
    assert folder.exists()


def test_a_rank_that_records_is_named(folder: Path) -> None:
    with state_file(folder, 1).open() as state:
        fcntl.flock(state, fcntl.LOCK_EX)
        assert merge(folder).missing == ("rank 1 still records",)


def test_records_before_damage_are_merged(folder: Path) -> None:
    path = log_file(folder, 1, 0)
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)
    merged = merge(folder)
    (stated,) = merged.missing
    assert str(path) in stated
    assert "is damaged at byte" in stated
    assert stated.endswith(f"among them {STEPS} steps of rank 1")
    assert len(merged.trace.steps.iteration) == STEPS
    assert np.isnan(merged.trace.steps.loss[:, 1]).all()


def test_a_log_that_cannot_be_read_is_left_out(folder: Path) -> None:
    state_file(folder, 1).write_bytes(b"another version")
    (stated,) = merge(folder).missing
    assert stated.startswith("rank 1 is left out: ")


def test_ranks_of_another_world_are_left_out(folder: Path) -> None:
    writer = RankWriter(folder, 7, world=4)
    writer.write(2)
    writer.close()
    assert merge(folder).missing == (
        "rank 7 is left out: its log is of another capture, of 4 ranks",
    )


def test_a_log_of_another_capture_is_left_out(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(folder: Path, rank: int) -> RankRecord:
        return replace(read_rank(folder, rank), capture=f"capture {rank}")

    monkeypatch.setattr(merging, "read_rank", read)
    assert merge(folder).missing == (
        "rank 1 is left out: its log is of another capture, of 2 ranks",
        "rank 1 recorded nothing",
    )


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="holds no log"):
        merge(tmp_path)
    with pytest.raises(CaptureError, match="does not exist"):
        merge(tmp_path / "nothing")


def test_a_trace_named_after_its_logs_is_replaced_by_force(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.h5"
    path.write_text("mine")
    assert main(["merge", str(folder)]) == 2
    assert "--force" in capsys.readouterr().err
    assert path.read_text() == "mine"
    assert main(["merge", str(folder), "--force"]) == 0
    with Trace.open(path) as trace:
        assert trace.meta.complete


def test_a_capture_without_a_step_replaces_nothing(tmp_path: Path) -> None:
    path, folder = tmp_path / "run.h5", tmp_path / "run.h5.logs"
    path.write_text("mine")
    for writer in write_run(folder, 0):
        writer.append(writer.layer(0, 0))
        writer.close()
    with pytest.raises(CaptureError, match="holds no step that has ended"):
        merge_into(folder, path, force=True)
    assert path.read_text() == "mine"
    assert folder.exists()


def test_logs_without_a_record_are_removed(tmp_path: Path) -> None:
    folder = tmp_path / "run.h5.logs"
    for writer in write_run(folder, 0):
        writer.close()
    with pytest.raises(CaptureError, match="neither a step nor a collective"):
        merge_into(folder, tmp_path / "run.h5", force=False)
    assert not folder.exists()
