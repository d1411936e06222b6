"""What every verb prints on terminals of three widths, and in a log, is whole."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import sys
import termios
import threading
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moetraffic.cli import main, output
from moetraffic.data import path
from moetraffic.report.console.terminal import Paper
from moetraffic.tables import Table

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


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("verb", ["info", "analyze", "compare"])
def test_first_screens_fit(
    verb: str, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(path("golden.h5").parent)
    files = ["golden.h5", "golden-linked.h5"][: 1 + (verb == "compare")]
    shown = on_terminal(width, lambda: main([verb, *files])).splitlines()
    shown = [line for line in shown if "\x1b" not in line]  # no progress
    assert len(shown) > 10
    assert max(map(len, shown)) <= width
    assert not any("not shown:" in line for line in shown)


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
