"""A heartbeat tells what it can, and never disturbs the training."""

from __future__ import annotations

import json
import os
import select

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moetraffic.launch import heartbeat


@pytest.fixture
def pipe(monkeypatch):
    read, write = os.pipe()
    os.set_blocking(read, False)
    os.set_blocking(write, False)
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv(heartbeat.PIPE, f"{write}:{os.fstat(write).st_ino}")
    yield read, write
    os.close(read)
    os.close(write)


def lines(read: int) -> list[dict]:
    return [json.loads(line) for line in os.read(read, 1 << 16).splitlines()]


def test_a_beat_is_one_json_line_with_rank_event_operation_and_fields(pipe):
    heartbeat.send("enter", "layer 1 dispatch", step=4)
    heartbeat.send("exit")
    assert lines(pipe[0]) == [
        {"rank": 3, "event": "enter", "operation": "layer 1 dispatch", "step": 4},
        {"rank": 3, "event": "exit", "operation": ""},
    ]


def test_without_a_supervisor_nothing_happens(monkeypatch):
    monkeypatch.delenv(heartbeat.PIPE, raising=False)
    monkeypatch.delenv(heartbeat.COUNTERS, raising=False)
    heartbeat.send("done")
    count = heartbeat.counter()
    count[0] = 5
    assert heartbeat.counter()[0] == 0


@given(
    text=st.text(max_size=9000),
    value=st.one_of(
        st.text(max_size=9000),
        st.floats(),
        st.binary(),
        st.lists(st.text(max_size=900), max_size=9),
    ),
)
def test_any_field_leaves_one_line_that_a_pipe_takes_whole(text, value):
    line = heartbeat._line("error", text, {"message": value, "rank": "nobody"})
    assert len(line) <= select.PIPE_BUF
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    said = json.loads(line)
    assert (said["event"], said["rank"]) == ("error", 0)


def test_what_json_cannot_hold_costs_only_itself(pipe):
    circle: list = []
    circle.append(circle)
    heartbeat.send("step", "operation 1", odd=circle)
    assert lines(pipe[0]) == [{"rank": 3, "event": "step", "operation": "operation 1"}]


def test_a_full_pipe_loses_the_line_and_goes_on(pipe):
    read, write = pipe
    filled = 0
    while True:
        try:
            filled += os.write(write, b"x" * 512)
        except BlockingIOError:
            break
    heartbeat.send("enter")
    heartbeat.send("done")
    assert len(os.read(read, 1 << 20)) == filled
    heartbeat.send("done")
    assert [line["event"] for line in lines(read)] == ["done"]


def test_a_supervisor_that_is_gone_is_no_error(monkeypatch):
    read, write = os.pipe()
    monkeypatch.setenv(heartbeat.PIPE, f"{write}:{os.fstat(write).st_ino}")
    os.close(read)
    heartbeat.send("done")
    os.close(write)
    heartbeat.send("done")
    assert heartbeat._pipe() is None


def test_another_file_under_the_same_number_is_left_alone(tmp_path, monkeypatch):
    with open(tmp_path / "data", "wb", buffering=0) as file:
        inode = os.fstat(file.fileno()).st_ino
        for value in (f"{file.fileno()}:{inode}", f"{file.fileno()}:1", "x", "99999:1"):
            monkeypatch.setenv(heartbeat.PIPE, value)
            heartbeat.send("done")
    assert (tmp_path / "data").read_bytes() == b""


def test_counters_are_a_line_a_rank_in_the_shared_file(tmp_path, monkeypatch):
    path = tmp_path / "counters"
    path.write_bytes(bytes(heartbeat.COUNTER_BYTES * 4))
    monkeypatch.setenv(heartbeat.COUNTERS, str(path))
    for rank in (1, 3):
        monkeypatch.setenv("RANK", str(rank))
        count = heartbeat.counter()
        count[0] = 10 + rank
    assert list(memoryview(path.read_bytes()).cast("q")) == [0, 11, 0, 13]


@pytest.mark.parametrize("make", [lambda p: None, lambda p: p.write_bytes(b"short")])
def test_counters_that_are_gone_or_too_small_are_no_error(tmp_path, monkeypatch, make):
    path = tmp_path / "counters"
    make(path)
    monkeypatch.setenv(heartbeat.COUNTERS, str(path))
    monkeypatch.setenv("RANK", "2")
    count = heartbeat.counter()
    count[0] = 1
    assert list(count) == [1]
