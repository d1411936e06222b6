"""The benchmark of policies, on the workers of a dask scheduler."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.slow
def test_traces_are_tasks_of_a_scheduler(tmp_path: Path) -> None:
    """Without --seed the traces are drawn: here a generated and a captured one."""
    pytest.importorskip("distributed")
    from distributed import Client, LocalCluster

    out = tmp_path / "scores.json"
    asked = ["policies.py", "--traces", "2", "--iterations", "16", "--most", "2"]
    with LocalCluster(
        n_workers=1, threads_per_worker=1, dashboard_address=None
    ) as cluster:
        address = ["--scheduler-address", cluster.scheduler_address, "--json", str(out)]
        ran = subprocess.run(
            [sys.executable, *asked, *address],
            cwd=BENCHMARKS,
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )
        with Client(cluster) as client:
            (tasks,) = client.run(
                lambda dask_worker: len(dask_worker.state.log)
            ).values()
    assert ran.returncode == 0, ran.stderr[-2000:]
    found = json.loads(out.read_text())
    assert [run["failures"] for run in found["runs"]] == [[], []]
    policies = {
        (s["policy"], s["network"]) for run in found["runs"] for s in run["scores"]
    }
    assert len({name for name, _ in policies}) == 11
    assert len({network for _, network in policies}) == 4
    assert tasks > 0  # the worker of the scheduler did them
    assert "| torus | `sprayed` | 2 |" in ran.stdout
