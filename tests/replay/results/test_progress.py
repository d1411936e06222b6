"""What a terminal and a log show of heartbeats."""

from __future__ import annotations

import io

import pytest
from rich.progress import Progress

from moetraffic.launch import Heartbeat
from moetraffic.replay import make_plan
from moetraffic.replay.results import console
from moetraffic.replay.results.console import ProgressDisplay
from moetraffic.report.console.terminal import Paper


def beat(
    rank: int, done: object, of: int = 100, stage: str = "replay", **more
) -> Heartbeat:
    fields = {"stage": stage, "done": done, "of": of, **more}
    return Heartbeat(rank=rank, event="step", operation="", fields=fields)


@pytest.fixture
def display(toy, monkeypatch, capsys):
    monkeypatch.setattr(console, "_LINE_EVERY_S", -1.0)
    with console.progress_display() as display:
        display.plan(make_plan(toy(world=2), ranks=()))
        assert "operations of trace" in capsys.readouterr().err
        yield display


def test_a_log_has_a_line_of_the_slowest_rank(display, capsys):
    display.event(beat(0, 7, 10))
    assert capsys.readouterr().err == ""  # nothing is known of rank 1
    display.event(beat(1, 9))
    line = "replaying: the slowest rank (1) has done 9 of 100 operations"
    assert capsys.readouterr().err.strip() == line


def test_a_rank_that_still_verifies_does_not_end_the_timed_pass(display, capsys):
    for rank in (0, 1):
        display.event(beat(rank, 90, stage="verify"))
    assert "verifying: the slowest rank (0) has done 90" in capsys.readouterr().err
    display.event(beat(0, 2))
    display.event(beat(1, 95, stage="verify"))
    assert capsys.readouterr().err == ""
    display.event(beat(1, 1))
    assert "replaying: the slowest rank (1) has done 1 of" in capsys.readouterr().err


@pytest.mark.parametrize(
    "wrong",
    [
        Heartbeat(rank=0, event="step", operation="", fields={}),
        beat(0, "many"),
        beat(0, 1, stage="dance"),
    ],
)
def test_what_is_no_progress_changes_nothing(display, wrong, capsys):
    display.event(beat(1, 3))
    display.event(wrong)
    assert capsys.readouterr().err == ""


def test_a_terminal_has_a_bar(toy):
    paper = Paper(file=io.StringIO(), force_terminal=True, width=100)
    with Progress(console=paper) as bar:
        display = ProgressDisplay(bar)
        display.plan(make_plan(toy(world=2), ranks=()))
        for rank in (0, 1):
            display.event(beat(rank, 20 + rank))
        (task,) = bar.tasks
    assert (task.description, task.completed, task.total) == ("replaying", 20, 100)
