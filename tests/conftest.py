"""Captures of real training that many tests read: made once, on real text."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

from moetraffic.trace.merge.log_format import read_state, state_file

# Several processes run the tests, and ranks beside them: where each has threads on
# every core, these spin for one that waits for its turn, and a product of two small
# matrices takes a tenth of a second.  It is read where torch and numpy are loaded.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Launchers compile the hook where there is a compiler, which takes half a minute; tests
# of the compiled hook ask for it.
os.environ.setdefault("MOETRAFFIC_HOOK", "python")

# A shell starts background jobs (nohup make test &) with SIGINT ignored, and the
# processes that tests start and interrupt would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# make test tries some of the cases, make test-all many
settings.register_profile(
    "moetraffic",
    max_examples=int(os.environ.get("MOETRAFFIC_EXAMPLES", "10")),
    deadline=None,  # cores are shared: no test asserts a time
)
settings.load_profile("moetraffic")


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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest first, so that all processes end together."""
    first = (
        "test_docs.py",
        "test_packaging.py",
        "capture/",
        "cli/",
        "replay/",
        "watch/",
    )
    items.sort(
        key=lambda item: next(
            (n for n, name in enumerate(first) if name in str(item.path)), len(first)
        )
    )


def ended_steps(logs: Path, rank: int) -> int:
    """Steps that a rank has ended, 0 before it records."""
    state = state_file(logs, rank)
    return read_state(state).steps if state.exists() and state.stat().st_size else 0


@pytest.fixture(scope="session")
def endless() -> Callable[[Path], subprocess.Popen[str]]:
    """Start a capture of 2 ranks that does not end, and wait for its first steps."""

    def start(path: Path) -> subprocess.Popen[str]:
        run = subprocess.Popen(
            [
                *(sys.executable, "-m", "moetraffic", "capture", "-o", path),
                *("--nproc", "2", "--layers", "2", "--hidden", "16", "--heads", "1"),
                *("--sequence", "16", "--iterations", "100000"),
            ],
            stderr=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        deadline = time.monotonic() + 60
        logs = path.with_name(f"{path.name}.logs")
        while not all(ended_steps(logs, rank) >= 20 for rank in range(2)):
            assert run.poll() is None, run.stderr.read() if run.stderr else ""
            assert time.monotonic() < deadline
            time.sleep(0.02)
        return run

    return start


SMALL = (
    *("--layers", 4, "--hidden", 32, "--heads", 2, "--sequence", 32),
    *("--experts", 8, "--micro-batch", 2),
)


@pytest.fixture(scope="session")
def once(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Callable[[str, Callable[[Path], None]], Path]:
    """A folder that is filled once, also where several processes run the tests."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if hasattr(request.config, "workerinput") else base

    def fill(name: str, make: Callable[[Path], None]) -> Path:
        folder = shared / f"once-{name}"
        with (shared / f"once-{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.exists():
                making = shared / f"making-{name}"
                making.mkdir()
                make(making)
                making.rename(folder)
        return folder

    return fill


@pytest.fixture(scope="session")
def captured(
    moetraffic: Callable[..., subprocess.CompletedProcess[str]],
    once: Callable[[str, Callable[[Path], None]], Path],
) -> Path:
    """4 ranks, EP 4, 8 experts, top-2 dropless, MoE every 2nd layer, accumulation 2."""

    def make(folder: Path) -> None:
        ran = moetraffic(
            *("capture", "-o", folder / "run.h5", "--nproc", 4, *SMALL),
            *("--iterations", 24, "--accumulation", 2),
        )
        assert ran.returncode == 0, ran.stderr

    return once("captured", make) / "run.h5"
