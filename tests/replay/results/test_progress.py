"""What a live view and a log say of heartbeats."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from moetraffic.launch import Heartbeat
from moetraffic.replay import make_plan
from moetraffic.replay.results.console import (
    ProgressDisplay,
    progress_display,
    render_progress,
)
from moetraffic.replay.results.metrics import Progress


def beat(
    rank: int, done: object, of: int = 100, stage: str = "replay", **more
) -> Heartbeat:
    fields = {"stage": stage, "done": done, "of": of, **more}
    return Heartbeat(rank=rank, event="step", operation="", fields=fields)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def drawn(progress: Progress) -> str:
    paper = io.StringIO()
    Console(file=paper, width=100, force_terminal=False).print(
        render_progress(progress)
    )
    return paper.getvalue()


def test_the_slowest_rank_the_rate_and_who_is_behind():
    clock = Clock()
    progress = Progress(3, clock)
    assert drawn(progress).startswith("starting")
    progress.update(beat(0, 0))
    clock.now += 10
    for rank, done in enumerate((60, 59, 20)):
        told = {"slowest_us": 50.0 * rank, "slowest": f"layer {rank}"}
        assert progress.update(beat(rank, done, **told))
    assert (progress.done, progress.of) == (20, 100)
    assert progress.rate == pytest.approx((60 + 59 + 20) / 3 / 10)
    assert progress.late == [2]
    line = progress.line()
    for part in (
        "replaying: the fastest rank has done 60 of 100 operations, "
        "the slowest (rank 2) 20",
        "100 us, layer 2, rank 2",
    ):
        assert part in line
    shown = drawn(progress)
    for part in ("rank 0", "60%", "rank 2", "behind", "left"):
        assert part in shown


def test_of_many_ranks_the_last_are_shown():
    progress = Progress(64, Clock())
    for rank in range(64):
        progress.update(beat(rank, 100 - rank))
    shown = drawn(progress)
    assert "the slowest 16 of 64 ranks" in shown
    assert "rank 63" in shown
    assert "rank 0 " not in shown


def test_a_new_pass_begins_anew_and_an_old_one_says_nothing():
    clock = Clock()
    progress = Progress(2, clock)
    progress.update(beat(0, 90, stage="verify"))
    clock.now += 50
    progress.update(beat(0, 1))
    assert progress.elapsed_s == 0
    assert (progress.stage, progress.done_of[0]) == ("replay", 1)
    assert not progress.update(beat(1, 95, stage="verify"))
    assert progress.done_of[1] == 0


@pytest.mark.parametrize(
    "wrong",
    [
        Heartbeat(rank=0, event="step", operation="", fields={}),
        beat(0, "many"),
        beat(0, 1, stage="dance"),
        beat(7, 1),
        beat(-1, 1),
    ],
)
def test_what_is_no_progress_changes_nothing(wrong):
    progress = Progress(2, Clock())
    assert not progress.update(wrong)
    assert progress.stage == ""


def test_a_log_has_plain_lines_and_a_terminal_a_view(toy, capsys, monkeypatch):
    monkeypatch.setattr("moetraffic.replay.results.console._LINE_EVERY_S", -1.0)
    plan = make_plan(toy(world=2), ranks=())
    with progress_display() as display:
        display.plan(plan)
        display.event(beat(0, 7))
    said = capsys.readouterr().err
    assert f"{len(plan)} operations of trace" in said
    assert "7 of 100 operations, the slowest (rank 1) none" in said
    assert "\x1b" not in said
    with progress_display(live=True) as display:
        assert isinstance(display, ProgressDisplay)
        display.plan(plan)
        display.event(beat(1, 9))
    assert "rank 1" in capsys.readouterr().err
