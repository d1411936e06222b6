"""torchrun and the job files on two hosts, which are network namespaces over TCP."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from moetraffic.trace.trace import Trace

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "benchmarks"))

from rate_limited import Hosts, hosts  # noqa: E402

MASTER = "10.77.0.1"
PORT = "29507"
SRUN = """#!/bin/sh
# stands in for srun: a task a namespace
shift  # --kill-on-bad-exit=1
n=0
for host in $HOSTS; do
    SLURM_PROCID=$n SLURM_STEP_NUM_TASKS=2 SLURM_LOCALID=0 \\
        ip netns exec "$host" "$@" &
    tasks="${tasks:-} $!"
    n=$((n + 1))
done
for task in $tasks; do wait "$task" || exit 1; done
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def two_hosts(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hosts]:
    """Two namespaces at one switch."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth0")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    monkeypatch.setenv("PATH", path)
    try:
        with hosts(2) as at:
            yield at
    except OSError as error:
        pytest.skip(f"no network namespaces here: {error}")


def on_each(at: Hosts, commands: Sequence[Sequence[str]]) -> list[str]:
    """Run a command in each namespace; what each prints, if all succeed."""
    started = [
        subprocess.Popen(
            ["ip", "netns", "exec", name, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for name, words in zip(at.names, commands, strict=True)
    ]
    try:
        said = [one.communicate(timeout=300) for one in started]
    finally:
        for one in started:
            one.kill()
            one.wait()
    for one, (_, err) in zip(started, said, strict=True):
        assert one.returncode == 0, err[-3000:]
    return [out for out, _ in said]


def test_torchrun_with_an_address_of_the_first_host(two_hosts, toy_file, tmp_path):
    """The recipe of docs/replay.md."""
    out = tmp_path / "again.h5"
    recipe = [
        *("torchrun", "--nnodes", "2", "--nproc-per-node", "1"),
        *("--master-addr", MASTER, "--master-port", PORT),
    ]
    what = ["--module", "moetraffic.replay", str(toy_file()), "-o", str(out)]
    said = on_each(two_hosts, [[*recipe, "--node-rank", n, *what] for n in "01"])
    assert "busbw" in said[0]
    assert said[1] == ""
    with Trace.open(out) as made:
        assert made.meta.world == 2


def test_the_kubernetes_job_runs_in_two_namespaces(two_hosts, toy_file, tmp_path):
    yaml = pytest.importorskip("yaml", reason="pyyaml is not installed")
    _, job = yaml.safe_load_all((ROOT / "examples/replay-kubernetes.yaml").read_text())
    (container,) = job["spec"]["template"]["spec"]["containers"]
    here: dict[str, Any] = {
        "/traces/run.h5": str(toy_file()),
        "/traces/": f"{tmp_path}/",
        "--nproc-per-node=8": "--nproc-per-node=1",  # hosts without GPUs
        "--backend=nccl": "--backend=gloo",
        "moetraffic-replay-0.moetraffic-replay": MASTER,
    }
    commands = []
    for index in "01":
        words = container["command"]
        for old, new in {"$(JOB_COMPLETION_INDEX)": index, **here}.items():
            words = [w.replace(old, new) for w in words]
        commands.append(words)
    said = on_each(two_hosts, commands)
    assert "busbw" in said[0]
    for name in ("replayed.h5", "replayed.json"):
        assert (tmp_path / name).stat().st_size


def test_the_slurm_script_runs_in_two_namespaces(two_hosts, toy_file, tmp_path):
    srun = tmp_path / "srun"
    srun.write_text(SRUN)
    srun.chmod(0o755)
    ran = subprocess.run(
        ["bash", ROOT / "examples/replay.slurm", str(toy_file())],
        env={
            **os.environ,
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
            "HOSTS": " ".join(two_hosts.names),
            "BACKEND": "gloo",
            "OUT": str(tmp_path / "out.h5"),
            "SLURM_JOB_ID": "7",
            "MASTER_ADDR": MASTER,
            "MASTER_PORT": PORT,
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert "busbw" in ran.stdout
    assert "Same traffic, byte for byte" in ran.stdout  # compare follows
    assert (tmp_path / "out.json").stat().st_size
