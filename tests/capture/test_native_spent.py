"""The compiled hook tells how long it took itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

RANK = """
import json, sys
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
from moetraffic.capture import Recorder
from moetraffic.capture.hook import native

dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
rows, told = torch.ones(4, 2), []
for run in range(2):
    with Recorder(f"{sys.argv[1]}/{run}.h5") as recorder:
        for _ in range(20 + run):
            dist.all_to_all_single(torch.empty(4, 2), rows)
            dist.all_to_all_single(torch.empty(4, 2), rows, async_op=True).wait()
        recorder.step()
        told.append(native.load().spent())
print(json.dumps(told))
"""


@pytest.mark.slow
@pytest.mark.usefixtures("compiled")
def test_every_call_is_in_the_histogram_of_its_run(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", RANK, tmp_path],
        env={**os.environ, "MOETRAFFIC_HOOK": "native"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    first, second = json.loads(ran.stdout.splitlines()[-1])
    # both those that are waited for at once and those that are not
    assert sum(calls for _, calls in first) == 40
    assert sum(calls for _, calls in second) == 42
    below = [ns for ns, _ in second]
    assert below == sorted(set(below))
    # a record is some hundred bytes: no call of a real processor is under 20 ns
    assert below[0] > 20
