"""The disk space of a long capture is forecast from what it has written."""

from __future__ import annotations

import math
import shutil
import time
from pathlib import Path

import numpy as np
import pytest

from moetraffic.errors import MoetrafficError
from moetraffic.launch.disk_watch import forecasting
from moetraffic.trace.model import Meta
from moetraffic.trace.segments.disk_forecast import DiskForecast, disk_forecast
from moetraffic.trace.segments.segment import (
    EVENT,
    STEP,
    Segment,
    rank_folder,
    write_segment,
)
from moetraffic.trace.segments.store import CLOSED, segments_folder
from moetraffic.units import byte_count

EVERY, STEPS, SECOND = 5, 4, 10**9


def written(folder: Path, index: int) -> int:
    """Write a segment of 4 recorded iterations of 0.5 s, one of 5; return its bytes."""
    steps = np.zeros(STEPS, STEP)
    steps["iteration"] = EVERY * (STEPS * index + np.arange(STEPS))
    steps["end"] = steps["iteration"] * SECOND // 2 + SECOND
    segment = Segment(
        **{"rank": 0, "index": index, "final": False, "node": ""},
        **{"meta": Meta(world=3, every=EVERY), "groups": (), "sites": ()},
        **{"events": np.zeros(0, EVENT), "steps": steps, "kinds": ("train",) * STEPS},
        **{"splits": {}, "demand": {}},
    )
    return write_segment(segment, folder).stat().st_size


def test_a_forecast_is_what_the_last_segments_take(tmp_path: Path) -> None:
    output = tmp_path / "run.h5"
    folder = segments_folder(output)
    assert disk_forecast(folder) is None
    rank_folder(folder, 0).mkdir(parents=True)
    written(folder, 0)
    assert disk_forecast(folder) is None
    size = written(folder, 1) + written(folder, 2)
    found = disk_forecast(folder)
    assert found is not None
    iterations = EVERY * (2 * STEPS - 1)
    assert (found.ranks, found.iterations, found.iteration_s) == (3, iterations, 0.5)
    # seven of eight recorded iterations lie between the first and the last end
    want = size * 7 / 8 / iterations * 3
    assert math.isclose(found.bytes_per_iteration, want)
    assert math.isclose(found.bytes_per_hour, want * 7200)
    assert found.free_bytes == pytest.approx(shutil.disk_usage(folder).free, rel=0.1)
    closed = rank_folder(folder, 0) / CLOSED
    closed.touch()
    assert disk_forecast(folder) is None  # the run has ended
    closed.unlink()
    said: list[str] = []
    with forecasting(output, said.append, iterations=1000, begin_s=0.01):
        deadline = time.monotonic() + 20
        while not said and time.monotonic() < deadline:
            time.sleep(0.01)
    assert len(said) == 1
    assert "for 1000 iterations" in said[0]


def test_a_full_disk_is_foreseen() -> None:
    found = DiskForecast(
        ranks=2,
        iterations=32,
        bytes_per_iteration=1e6,
        iteration_s=1.0,
        free_bytes=10**9,
    )
    assert found.sentence() == (
        "segments take 1.00 MB an iteration of all 2 ranks (32 iterations measured), "
        "3.60 GB an hour at 1 s an iteration; 1.00 GB are free, enough for "
        "0.278 h: limit the capture with --max-size or --every"
    )
    assert "--max-size" in found.sentence(1001)
    assert "--max-size" not in found.sentence(999)


@pytest.mark.parametrize(
    "text", ["", "5", "0B", "-1GB", "1e9B", "5XB", "1iB", "9" * 40]
)
def test_sizes_are_refused(text: str) -> None:
    with pytest.raises(MoetrafficError, match="20GB"):
        byte_count(text)
