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
        [SCRIPT, "--rates", "100,200", "--oversubscription", "4", "--json"],
        env={**os.environ, "PYTHON": sys.executable, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=850,
        check=True,
    )
    rows = json.loads(ran.stdout)["rows"]
    assert namespaces() <= before
    backends = ["gloo", "gloo-duplex", "sockets"]
    assert [r["backend"] for r in rows] == [*backends, *backends, "gloo", "gloo"]
    replays = [r for r in rows if r["backend"] != "sockets"]
    assert all(r["verified"] == "full" for r in replays)
    # the same bytes were sent at one switch, and no link gave more than it has
    assert len({r["network_bytes"] for r in replays[:4]}) == 1
    assert all(r["ratio"] > 1 for r in rows)
    slow, fast = rows[:3], rows[3:6]
    for one in slow:
        assert one["bound_s"] == pytest.approx(slow[0]["bound_s"], rel=1e-6)
    assert slow[0]["bound_s"] == pytest.approx(2 * fast[0]["bound_s"], rel=1e-6)
    # headers and acknowledgments: 66 bytes of 1514, and of two segments
    assert all(1.045 < r["wire_ratio"] < 1.08 for r in (slow[2], fast[2]))
    for racks, switch in zip(replays[4:], (slow[0], fast[0]), strict=True):
        each = [r["bound_s"] / r["network_bytes"] for r in (racks, switch)]
        assert each[0] > each[1]


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
