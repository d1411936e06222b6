"""What every verb prints on terminals of three widths, and in a log, is whole."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import shlex
import struct
import sys
import termios
import threading
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moetraffic.analysis import compare
from moetraffic.cli import main, output
from moetraffic.data import path
from moetraffic.report.console.terminal import Paper
from moetraffic.tables import Table
from moetraffic.trace import Trace

RUN, OTHER = path("golden-v1.h5"), path("golden-v1.1.h5")
WIDTHS = (80, 100, 120)


def on_terminal(width: int, act: Callable[[], None]) -> str:
    """Return what is printed on a pseudo-terminal of a width."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
    parts = []

    def read() -> None:
        while True:
            try:
                part = os.read(ours, 1 << 16)
            except OSError:  # closed
                return
            parts.append(part)

    reader = threading.Thread(target=read)
    reader.start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", str(width))
        patch.setenv("TERM", "xterm")
        with os.fdopen(theirs, "w", encoding="utf-8") as terminal:
            patch.setattr(sys, "stdout", terminal)
            patch.setattr(sys, "stderr", terminal)
            patch.setattr(output, "console", Paper())
            act()
    reader.join(10)
    os.close(ours)
    return re.sub(r"\x1b\[[0-9;]*m", "", b"".join(parts).decode()).replace("\r", "")


def test_only_equal_matrices_are_byte_identical() -> None:
    noise = np.random.default_rng()
    demand = noise.integers(1, 99, (12, 1, 4, 8))
    runs = [
        Trace.from_arrays(demand=d, k=1) for d in (demand, demand, demand[::-1].copy())
    ]
    assert "12 iterations" in compare(runs[0], runs[1]).identical
    assert not compare(runs[0], runs[2]).identical


WORDS = st.text("abc 0123456789.%-", min_size=0, max_size=30)


@given(
    columns=st.integers(1, 14),
    rows=st.integers(0, 7),
    width=st.sampled_from((40, *WIDTHS)),
    drawn=st.data(),
)
def test_every_cell_of_any_table_is_shown_whole(
    columns: int, rows: int, width: int, drawn: st.DataObject
) -> None:
    line = st.tuples(*[st.one_of(WORDS, st.floats(-1e9, 1e9), st.none())] * columns)
    table = Table(
        title="Any",
        columns=[drawn.draw(WORDS) for _ in range(columns)],
        rows=[drawn.draw(line) for _ in range(rows)],
    )
    shown = "".join(segment.text for segment in Paper(width=width).render(table))
    assert max(map(len, shown.splitlines()), default=0) <= width
    seen = Counter(shown.split())
    for word in {w for row in table.texts() for cell in row for w in cell.split()}:
        assert seen[word] or seen[f"{word};"] or seen[f"{word}."]


def test_sentences_in_a_log_are_as_wide_as_its_tables(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """All lines but the first are indented, and commands are whole."""
    commands = [
        f"moetraffic {verb} runs/first.h5 --tables"
        for verb in ("info", "analyze", "compare", "replay")
    ]
    said = f"Next: {'; '.join(commands)}. {'x' * 200} is longer than a line."
    Paper().say(said)
    first, *others = capsys.readouterr().out.splitlines()
    assert all(line.startswith("  ") for line in others)
    assert " ".join(line.strip() for line in (first, *others)) == said
    assert all(len(line) <= 120 or "x" * 200 in line for line in (first, *others))
    for command in commands:
        assert any(command in line for line in (first, *others))


@pytest.mark.parametrize("width", WIDTHS)
def test_a_command_longer_than_a_terminal_is_whole_for_a_shell(
    width: int, capsys: pytest.CaptureFixture[str]
) -> None:
    options = " ".join(f"--option-{n} {n}" for n in range(40))
    command = f"moetraffic verb 'my first run.h5' -o x.h5 --flag {options}"
    Paper(width=width, force_terminal=True).say(f"Next: {command} (why)")
    printed = capsys.readouterr().out
    lines = printed.splitlines()
    assert all(len(line) <= width for line in lines)
    assert shlex.split(printed.replace("\\\n", "")) == shlex.split(
        f"Next: {command} (why)"
    )
    assert not any(line.strip()[:1].isdigit() for line in lines)


def test_a_number_and_its_unit_are_on_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    said = " ".join(f"link{n} takes {n} us at {n} Gbps" for n in range(1, 99))
    Paper().say(said)
    lines = capsys.readouterr().out.splitlines()
    assert " ".join(line.strip() for line in lines) == said
    assert not any(line.strip().startswith(("us ", "Gbps ")) for line in lines)


@pytest.mark.parametrize("width", WIDTHS)
def test_an_error_is_wrapped_on_a_terminal_and_one_line_in_a_log(
    width: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """No word is broken, so that a long path can be copied."""
    missing = f"/{'folder/' * 20}run.h5"
    assert main(["info", missing]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    shown = on_terminal(width, lambda: main(["info", missing])).splitlines()
    assert " ".join(map(str.strip, shown)) == line
    assert all(len(part) <= width or len(part.split()) == 1 for part in shown)
    assert all(part.startswith("  ") for part in shown[1:])


def test_a_log_has_the_same_width_whatever_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = []
    for width in ("60", "300"):
        monkeypatch.setenv("COLUMNS", width)
        Paper().show([Table(columns=["name"] * 30, rows=[["12345678"] * 30] * 9)])
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1]
