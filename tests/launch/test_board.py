"""The board shows what ranks note, from process to process."""

from __future__ import annotations

import subprocess
import sys

from moetraffic.launch import board
from moetraffic.launch.board import Board, Cause, OwnRow, State, decoded

OTHER = """
import sys
from moetraffic.launch.board import Board, OwnRow, State
row = OwnRow(Board(path=sys.argv[1]), 1)
row.counter[0] = 7
row.note("the writing", State.READY, within_s=5.0, done=3, total=9)
"""


def test_another_process_writes_its_row():
    shared = Board(3)
    subprocess.run([sys.executable, "-c", OTHER, shared.path], check=True)
    row = shared.rows[1]
    assert (row["position"], row["state"], row["done"], row["total"]) == (7, 2, 3, 9)
    assert decoded(row["place"]) == "the writing"
    assert row["until_ns"] - row["time_ns"] == 5_000_000_000
    assert not shared.rows[[0, 2]]["time_ns"].any()


def test_a_note_ends_the_announced_silence_and_the_first_failure_counts():
    row = OwnRow(Board(2), 1)
    row.note("a", State.READY, within_s=9.0)
    row.note()
    assert row.row["until_ns"] == 0
    assert decoded(row.row["place"]) == "a"
    row.fail("é" * 500, Cause.MISMATCH, blames=0)
    row.fail("another")
    assert decoded(row.row["message"]) == "é" * 400
    assert (row.row["cause"], row.row["blames"]) == (Cause.MISMATCH, 0)
    shared = Board(4)
    row.counter[0] = 5
    row.move(shared, 3)
    row.counter[0] += 1
    assert (shared.rows[3]["position"], shared.rows[3]["state"]) == (6, State.FAILED)


def test_without_a_supervisor_the_row_is_private(monkeypatch):
    for path in ("", "/proc/self/fd/999"):
        monkeypatch.setattr(board, "_own", None)
        monkeypatch.setenv(board.PATH, path)
        monkeypatch.setenv("RANK", "2")
        assert not board.own().supervised
        board.own().note("start-up")
    monkeypatch.setattr(board, "_own", None)
    shared = Board(3)
    monkeypatch.setenv(board.PATH, shared.path)
    assert board.own().supervised
    board.own().counter[0] = 4
    assert shared.rows["position"].tolist() == [0, 0, 4]
