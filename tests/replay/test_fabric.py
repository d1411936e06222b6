"""benchmarks/fabric.sh: no replay beats the bound of the links it runs over."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "fabric.sh"


def lacking() -> str:
    """Why there can be no rate-limited namespaces here, or ""."""
    for tool in ("ip", "tc", "taskset"):
        if shutil.which(tool) is None:
            return f"{tool} is not installed"
    if os.geteuid() != 0:
        return "making network namespaces needs root"
    name = f"moetraffictry{os.getpid()}"
    add = ["ip", "netns", "add", name]
    made = subprocess.run(add, capture_output=True, text=True, check=False)
    if made.returncode:
        return f"this host lets nobody make network namespaces: {made.stderr.strip()}"
    limited = subprocess.run(
        [
            *("tc", "-n", name, "qdisc", "replace", "dev", "lo", "root", "tbf"),
            *("rate", "1mbit", "burst", "32kb", "latency", "400ms"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
    return "" if not limited.returncode else f"no tc tbf here: {limited.stderr.strip()}"


def namespaces() -> set[str]:
    listed = ["ip", "netns", "list"]
    said = subprocess.run(listed, capture_output=True, text=True, check=True)
    return {line.split()[0] for line in said.stdout.splitlines() if line}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_times_stay_above_the_bound_and_nothing_is_left_behind() -> None:
    reason = lacking()
    if reason:
        pytest.skip(reason)
    before = namespaces()
    ran = subprocess.run(
        [SCRIPT, "--rates", "50,200", "--iterations", "4", "--json"],
        env={**os.environ, "PYTHON": sys.executable, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=850,
        check=True,
    )
    rows = json.loads(ran.stdout)["rows"]
    assert namespaces() <= before
    assert len(rows) == 4
    assert all(r["verified"] == "full" for r in rows)
    # the same bytes were sent everywhere, and no link gave more than it has
    assert len({r["network_bytes"] for r in rows}) == 1
    assert all(r["ratio"] > 1 for r in rows)
    slow, fast, racks_slow, racks_fast = (r["bound_s"] for r in rows)
    assert slow == pytest.approx(4 * fast, rel=1e-6)
    assert racks_slow == pytest.approx(4 * racks_fast, rel=1e-6)
    assert racks_slow > slow


@pytest.mark.slow
def test_an_interrupted_run_removes_its_namespaces() -> None:
    reason = lacking()
    if reason:
        pytest.skip(reason)
    running = subprocess.Popen(
        [SCRIPT, "--rates", "50"],
        env={**os.environ, "PYTHON": sys.executable, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    own = f"moetraffic{running.pid}"
    while not any(name.startswith(own) for name in namespaces()):
        assert running.poll() is None
    running.terminate()
    assert running.wait(timeout=60) == 143
    assert not any(name.startswith(own) for name in namespaces())
