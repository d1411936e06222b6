"""Kill launchers of captures, and what they launch, and judge the traces.

``python launcher_kills.py FOLDER RUNS SEED`` captures 2 ranks with the real commands,
``moetraffic run -- torchrun ...`` and ``moetraffic capture``, and kills a process of
them at a random time: the launcher itself, torchrun, a rank, or all processes at once.
The steps that the ranks have ended are noted as in ``kills.py``.

A killed ``moetraffic run`` or torchrun leaves ranks that train on; they are told to end
after a while, and their trace must then be complete.  A killed ``moetraffic capture``
takes its ranks with it.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from kills import (
    FIRST_STEPS,
    PACES_S,
    RANKS,
    contents,
    judged,
    kept,
    lost_steps,
    progress,
)

from moetraffic.trace import ALL_TO_ALL, ROUTING, Trace
from moetraffic.trace.merge.merging import merge

KINDS = (
    "run: launcher",
    "run: torchrun",
    "run: rank",
    "run: all processes",
    "capture: launcher",
    "capture: rank",
    "capture: all processes",
)
SURVIVING = ("run: launcher", "run: torchrun")
"""Kinds after which all ranks train on."""

TRAIN = """\
import os, sys, time
from pathlib import Path
import torch
import torch.distributed as dist

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)])
done = os.open(f"progress-{rank}", os.O_CREAT | os.O_WRONLY)
step, over = 0, False
began = time.monotonic()
while not over:
    # rank 0 decides when all end; nothing trains for ever if this script is killed
    ends = rank == 0 and (Path("end").exists() or time.monotonic() > began + 400)
    sent = torch.full((world * (1 + step % 5), 2), float(ends))
    received = torch.zeros_like(sent)
    dist.all_to_all_single(received, sent)
    over = bool(received[0, 0])
    optimizer.step()
    os.write(done, b".")
    step += 1
    time.sleep(float(sys.argv[1]))
dist.destroy_process_group()
"""

NOTING = """\
import os, sys, time

if "moetraffic.models" in sys.orig_argv:
    from moetraffic.capture import Recorder

    step = Recorder.step
    done = os.open(f"progress-{os.environ['RANK']}", os.O_CREAT | os.O_WRONLY)

    def noted(*arguments, **named):
        step(*arguments, **named)
        os.write(done, b".")
        time.sleep(float(os.environ["PACE_S"]))

    Recorder.step = noted
"""
"""The ranks of ``moetraffic capture`` note their steps, and sleep after each."""


def command(folder: Path, kind: str, pace_s: float) -> list[str]:
    """Write what a capture needs into its folder; return the command."""
    moetraffic = [sys.executable, "-m", "moetraffic"]
    if kind.startswith("run"):
        (folder / "train.py").write_text(TRAIN)
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        torchrun += ["--nproc-per-node", str(RANKS), "train.py", str(pace_s)]
        return [*moetraffic, "run", "-o", "run.h5", "--", *torchrun]
    (folder / "site").mkdir()
    (folder / "site" / "sitecustomize.py").write_text(NOTING)
    return [
        *(*moetraffic, "capture", "-o", "run.h5", "--nproc", str(RANKS)),
        *("--layers", "2", "--hidden", "16", "--heads", "1", "--sequence", "16"),
        *("--iterations", "100000"),
    ]


def children(pid: int) -> list[int]:
    """Process ids of the children of all threads of a process."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        found += [int(child) for child in task.read_text().split()]
    return found


def runs(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return fields[0] not in "ZX"


def of_rank(pid: int) -> bool:
    """Whether a process is a rank, by its command."""
    parts = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return b"train.py" in parts or b"moetraffic.models" in parts


Exchanged = dict[tuple[str, int], list[Any]]


def exchanged(trace: Trace) -> Exchanged:
    """Token copies and bytes of each iteration that all ranks have recorded."""
    found: Exchanged = {}
    for operation, read in ((ROUTING, trace.demand), (ALL_TO_ALL, trace.wire)):
        of = trace.complete(trace.find(operation=operation))
        when = trace.occurrences.iteration[of]
        for step in range(min(kept(trace))):
            found[operation, step] = read(of[when == step]).tolist()
    return found


def same(one: Exchanged, other: Exchanged) -> bool:
    """Whether all iterations that both have are equal, and there are some."""
    common = one.keys() & other.keys()
    return len(common) >= FIRST_STEPS and all(one[at] == other[at] for at in common)


def launched(folder: Path, kind: str, pace_s: float) -> subprocess.Popen[bytes]:
    """Start a capture, and wait for the first steps of all ranks."""
    stderr = folder / "stderr"
    launcher = subprocess.Popen(
        command(folder, kind, pace_s),
        cwd=folder,
        env=os.environ
        | {"PYTHONPATH": str(folder / "site"), "PACE_S": str(pace_s)}
        | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=stderr.open("w"),
    )
    deadline = time.monotonic() + 200
    while min(progress(folder)) <= FIRST_STEPS:
        assert launcher.poll() is None, stderr.read_text()
        assert time.monotonic() < deadline, stderr.read_text()
        time.sleep(0.01)
    return launcher


def reference(folder: Path) -> Exchanged:
    """Capture the training of ``moetraffic capture`` without a kill."""
    folder.mkdir()
    launcher = launched(folder, "capture", 0.0)
    while min(progress(folder)) < 100:
        time.sleep(0.05)
    launcher.send_signal(signal.SIGINT)
    launcher.wait(timeout=200)
    with Trace.open(folder / "run.h5") as trace:
        return exchanged(trace)


def one_run(
    folder: Path, kind: str, chance: random.Random, undisturbed: Exchanged
) -> dict[str, Any]:
    """Run a training by a launcher, kill, and judge what the trace says."""
    folder.mkdir()
    pace_s, victim = chance.choice(PACES_S), chance.randrange(RANKS)
    launcher = launched(folder, kind, pace_s)
    stderr = folder / "stderr"
    parent = children(launcher.pid)[0] if kind.startswith("run") else launcher.pid
    ranks = [pid for pid in children(parent) if of_rank(pid)]
    assert len(ranks) == RANKS, ranks
    every = {launcher.pid, parent, *ranks}
    time.sleep(chance.uniform(0, 0.6))
    for target in {
        "launcher": [launcher.pid],
        "torchrun": [parent],
        "rank": [ranks[victim]],
        "all processes": every,
    }[kind.partition(": ")[2]]:
        os.kill(target, signal.SIGKILL)
    deadline = time.monotonic() + 200
    if kind in SURVIVING:
        time.sleep(chance.uniform(0, 0.6))
        (folder / "end").touch()
    launcher.wait(timeout=200)
    while any(map(runs, every)):
        assert time.monotonic() < deadline, "processes outlive the capture"
        time.sleep(0.01)
    told = {"run": folder.name, "kind": kind, "pace_s": pace_s, "victim": victim}
    told |= {"steps": (steps := progress(folder)), "exit": launcher.returncode}
    told |= {"load": os.getloadavg()[0]}
    wrong: list[str] = []
    path = folder / "run.h5"
    merges = kind.endswith("rank") or kind == "run: torchrun"
    if path.exists() != merges:
        wrong.append("the launcher should " + "not " * (not merges) + "have merged")
    logs = folder / "run.h5.logs"
    # the launcher removes the logs of a complete trace
    lost = lost_steps(logs) if logs.exists() else {}
    if not path.exists():
        merged = merge(logs)
        wrong += merged.contradictions
        merged.trace.save(path)
    with Trace.open(path) as trace:
        missing = trace.meta.missing
        wrong += judged(trace, steps, lost)
        if kind.startswith("run"):
            wrong += contents(trace)
        elif not same(undisturbed, exchanged(trace)):
            wrong.append("tokens or bytes are not those of the same training")
    killed = {victim} if kind.endswith("rank") else set(range(RANKS))
    if kind in SURVIVING:
        killed = set()
    # torchrun ends the other ranks by SIGTERM
    possible = set(range(RANKS)) if kind == "run: rank" else killed
    if not killed <= lost.keys() <= possible:
        wrong.append(f"{missing!r}: {stderr.read_text()[-2000:]}")
    return told | {
        "missing": missing,
        "wrong": wrong,
        "lost": [lost.get(rank, 0) for rank in range(RANKS)],
    }


def main(folder: Path, number: int, seed: int) -> None:
    chance = random.Random(seed)
    undisturbed = reference(folder / "reference")
    with (folder / "launcher_kills.jsonl").open("w") as notes:
        for at in range(number):
            kind = KINDS[at % len(KINDS)]
            told = one_run(folder / f"run{at}", kind, chance, undisturbed)
            notes.write(json.dumps(told | {"seed": seed}) + "\n")
            notes.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
