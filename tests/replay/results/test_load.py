"""The load of a host by processes other than the ranks."""

from __future__ import annotations

import numpy as np
import pytest

from moetraffic.replay.results import load
from moetraffic.replay.results.load import busy, load_now, load_rows, reading


def test_the_load_of_a_host_is_what_its_ranks_did_not_use(tmp_path, monkeypatch):
    meters = np.array([[2.0, 3.0, 0.5], [2.0, 3.0, 1.5], [2.0, 0.5, 0.5]])
    one, other = load_rows(["a", "a", "b"], meters)
    assert (one["host"], one["others"], other["others"]) == ("a", 0.5, 0.0)
    assert not busy(other)
    assert busy({"host": "a", "cores": 2, "others": 0.3})
    # user 200, nice 300, system 500 ticks; idle and interrupts are not work
    stat = tmp_path / "stat"
    stat.write_text("cpu  200 300 500 9999 9 9 9 0 0 0\ncpu0 1 1 1\n")
    monkeypatch.setattr(load, "STAT", stat)
    before = reading()
    stat.write_text("cpu  300 300 600 99999 9 9 9 0 0 0\n")
    assert (reading() - before)[1] == pytest.approx(2.0)  # 200 ticks of 10 ms
    assert load_now(0.01) == ""
    stat.unlink()
    assert load_rows(["a"], (reading() - before)[None]) == []
    assert load_now(0.01) == ""
