"""Progress of verbs where standard error is no terminal."""

from __future__ import annotations

import time

import pytest

from moetraffic.cli import output


def test_plain_lines_of_progress_are_ten_seconds_apart(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with output.progress("generating", 100) as tick:
        for done in range(1, 101):
            now += 0.35
            tick(done, "expert 3" if done == 58 else "")
    lines = capsys.readouterr().err.splitlines()
    notes = {29: "", 58: " (expert 3)", 87: ""}
    assert lines == [f"generating: {at} of 100 done{end}" for at, end in notes.items()]


def test_a_step_that_may_take_long_is_announced(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for start in (False, True):
        with output.progress("fitting", 6, start=start):
            pass
        assert capsys.readouterr().err == "fitting: 0 of 6 done\n" * start
