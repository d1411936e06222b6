"""Captures of real training that many tests read: made once, on real text."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def moetraffic() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the command line in a process of its own."""

    def run(*arguments: object, **named: object) -> subprocess.CompletedProcess[str]:
        environment = {
            k: v
            for k, v in os.environ.items()
            if k not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")
        }
        environment |= {"COLUMNS": "120", "OMP_NUM_THREADS": "1"}
        return subprocess.run(
            [sys.executable, "-m", "moetraffic", *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=180,
            env=environment,
            check=False,
            **named,  # type: ignore[call-overload]
        )

    return run


SMALL = (
    *("--layers", 4, "--hidden", 32, "--heads", 2, "--sequence", 32),
    *("--experts", 8, "--micro-batch", 2),
)


@pytest.fixture(scope="session")
def captured(
    moetraffic: Callable[..., subprocess.CompletedProcess[str]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """4 ranks, EP 4, 8 experts, top-2 dropless, MoE every 2nd layer, accumulation 2."""
    path = tmp_path_factory.mktemp("captured") / "run.h5"
    ran = moetraffic(
        *("capture", "-o", path, "--nproc", 4, *SMALL),
        *("--iterations", 24, "--accumulation", 2),
    )
    assert ran.returncode == 0, ran.stderr
    return path


@pytest.fixture(scope="session")
def captured_pair(
    moetraffic: Callable[..., subprocess.CompletedProcess[str]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """2 ranks, Switch with a capacity, dropped without padding."""
    path = tmp_path_factory.mktemp("captured") / "pair.h5"
    ran = moetraffic(
        *("capture", "-o", path, "--nproc", 2, *SMALL, "--iterations", 12),
        *("--router", "switch", "--dispatch", "dropped", "--capacity-factor", 1.0),
    )
    assert ran.returncode == 0, ran.stderr
    return path
