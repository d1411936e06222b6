"""Kill ranks and committer processes of captures at random times, and judge the traces.

``python kills.py FOLDER RUNS SEED`` imports torch once and forks the ranks of each run.
A rank notes every step that it has ended in ``progress-<rank>`` (a byte a step), and
its tokens and splits are functions of the step, so that the trace can be compared.

Victims are the committer of one rank (the training then goes on, and ends regularly),
a rank, a rank with its committer, all ranks (as when their launcher dies), or all
processes.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import sys
import time
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from moetraffic.capture import Recorder
from moetraffic.capture.records.recovery import recover
from moetraffic.trace import ALL_TO_ALL, Trace
from moetraffic.trace.merge.merging import merge

RANKS, WINDOW = 2, 16
VICTIMS = ("committer", "rank", "rank and committer", "all ranks", "all processes")
PACES_S = (0.0, 0.001, 0.005, 0.02)
STATED = re.compile(
    r"rank (\d+) was not closed: its record ends after iteration (-?\d+)"
    r"(?:, \d+ before the last of all)?, and "
    r"(?:up to (\d+) later steps are|at most the (step under way) is) lost"
)


def rows(step: int) -> int:
    """Rows that each rank sends to each in a step."""
    return 1 + step % 5


def rank_program(folder: Path, rank: int, pace_s: float, marked: bool) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        store=dist.FileStore(str(folder / "store"), RANKS),
        rank=rank,
        world_size=RANKS,
        timeout=timedelta(seconds=60),
    )
    done = os.open(folder / f"progress-{rank}", os.O_CREAT | os.O_WRONLY)
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)])
    with Recorder(folder / "run.h5", window=WINDOW) as recorder:
        step, over = 0, False
        while not over:
            # rank 0 decides when all end
            ends = rank == 0 and (folder / "end").exists()
            sent = torch.full((RANKS * rows(step), 2), float(ends))
            received = torch.zeros_like(sent)
            dist.all_to_all_single(received, sent)
            over = bool(received[0, 0])
            if marked:
                recorder.step(tokens=1000 + step)
            else:
                optimizer.step()
            os.write(done, b".")
            step += 1
            time.sleep(pace_s)
    dist.destroy_process_group()


def started(folder: Path, pace_s: float, marked: bool) -> list[int]:
    """Start the ranks, and return their process ids."""
    ranks = []
    for rank in range(RANKS):
        child = os.fork()
        if child == 0:
            try:
                error = os.open(folder / f"stderr-{rank}", os.O_CREAT | os.O_WRONLY)
                os.dup2(error, 2)
                rank_program(folder, rank, pace_s, marked)
            except BaseException as error:
                sys.stderr.write(repr(error))
            finally:
                os.kill(os.getpid(), signal.SIGKILL)
        ranks.append(child)
    return ranks


def committer_of(rank: int) -> int:
    """Process id of the committer that a rank has started."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = path.read_text().rpartition(")")[2].split()[1]
        except OSError:
            continue  # it has ended
        if int(parent) == rank:
            return int(path.parent.name)
    raise AssertionError(f"rank {rank} has no committer")


def progress(folder: Path) -> list[int]:
    """Steps that each rank has ended."""
    files = [folder / f"progress-{rank}" for rank in range(RANKS)]
    return [file.stat().st_size if file.exists() else 0 for file in files]


def segments(folder: Path) -> set[str]:
    found = (folder / "run.h5.segments").glob("rank-*/segment-*.h5")
    return {str(path.relative_to(folder)) for path in found}


def one_run(folder: Path, kind: str, chance: random.Random) -> dict[str, Any]:
    """Run a training, kill, and judge what the trace says."""
    folder.mkdir()
    pace_s, victim = chance.choice(PACES_S), chance.randrange(RANKS)
    marked = chance.random() < 0.7  # whether the program calls step()
    ranks = started(folder, pace_s, marked)
    deadline = time.monotonic() + 120
    while min(progress(folder)) <= WINDOW:
        assert time.monotonic() < deadline, (folder / "stderr-0").read_text()
        time.sleep(0.005)
    committers = [committer_of(rank) for rank in ranks]
    time.sleep(chance.uniform(0, 0.6))
    before = segments(folder)
    for target in {
        "committer": [committers[victim]],
        "rank": [ranks[victim]],
        "rank and committer": [ranks[victim], committers[victim]],
        "all ranks": ranks,
        "all processes": [*ranks, *committers],
    }[kind]:
        os.kill(target, signal.SIGKILL)
    if kind == "committer":
        time.sleep(chance.uniform(0, 0.6))
        (folder / "end").touch()
    for child in ranks:
        os.waitpid(child, 0)
    steps = progress(folder)
    told = {"run": folder.name, "kind": kind, "pace_s": pace_s, "marked": marked}
    told |= {"victim": victim, "steps": steps, "load": os.getloadavg()[0]}
    stderr = "".join((folder / f"stderr-{r}").read_text() for r in range(RANKS))
    wrong: list[str] = []
    if kind == "committer":
        if "was ended by SIGKILL, and is started again" not in stderr:
            wrong.append("the restart is not reported")
        if not (folder / "run.h5").exists():
            return told | {"wrong": ["no trace was written: " + stderr[-500:]]}
        with Trace.open(folder / "run.h5") as trace:
            if not trace.meta.complete:
                wrong.append(trace.meta.missing)
            wrong += judged(trace, steps, {}) + contents(trace)
        return told | {"wrong": wrong, "lost": [0, 0], "stated": [0, 0]}
    failures = recover(folder / "run.h5.segments", patience_s=100)
    merged = merge(folder / "run.h5.segments")
    wrong += [*failures, *merged.contradictions]
    if not before <= segments(folder):
        wrong.append(f"committed segments are gone: {before - segments(folder)}")
    stated = bounds(merged.missing)
    dead = range(RANKS) if kind.startswith("all") else [victim]
    for rank in range(RANKS):
        if (rank in stated) != (rank in dead):
            wrong.append(f"rank {rank}: {merged.missing} {merged.remarks}")
    wrong += judged(merged.trace, steps, stated) + contents(merged.trace)
    lost = [max(0, n - k) for n, k in zip(steps, kept(merged.trace), strict=True)]
    return told | {
        "wrong": wrong,
        "lost": lost,
        "stated": [stated.get(rank, 0) for rank in range(RANKS)],
    }


def bounds(missing: Iterable[str]) -> dict[int, int]:
    """Steps that the sentences of a trace say are lost at most, by rank."""
    found = {}
    for sentence in missing:
        match = STATED.fullmatch(sentence)
        if match:
            found[int(match[1])] = int(match[3] or 1)
        elif "was not closed" in sentence:
            found[int(sentence.split()[1])] = -1  # unknown
    return found


def kept(trace: Any) -> list[int]:
    """Steps of each rank in a trace."""
    return [int((trace.steps.end[:, r] != np.iinfo("i8").min).sum()) for r in (0, 1)]


def judged(trace: Any, steps: list[int], stated: dict[int, int]) -> list[str]:
    """What a trace says of its steps that is not true."""
    wrong = []
    iterations = trace.steps.iteration
    if iterations.tolist() != list(range(len(iterations))):
        wrong.append("iterations are missing")
    for rank, there in enumerate(kept(trace)):
        mine = trace.steps.end[:, rank] != np.iinfo("i8").min
        if not mine[:there].all():
            wrong.append(f"rank {rank} has a gap")
        if not steps[rank] - stated.get(rank, 0) <= there <= steps[rank] + 1:
            wrong.append(
                f"rank {rank} ended {steps[rank]} steps, of which {there} are kept, "
                f"and up to {stated.get(rank, 0)} should be lost"
            )
    return wrong


def contents(trace: Any) -> list[str]:
    """What of the tokens and bytes in a trace is not true."""
    wrong = []
    for rank, there in enumerate(kept(trace)):
        tokens = trace.steps.tokens[:there, rank]
        if (tokens >= 0).any() and (tokens != 1000 + np.arange(there)).any():
            wrong.append(f"rank {rank} has the tokens of other steps")
    if min(kept(trace)):
        calls = trace.complete(trace.find(operation=ALL_TO_ALL))
        wire = trace.wire(calls).reshape(len(calls), -1)
        expected = [8 * rows(int(step)) for step in trace.occurrences.iteration[calls]]
        if (wire != np.array(expected)[:, None]).any():
            wrong.append("bytes are those of another step")
    return wrong


def main(folder: Path, runs: int, seed: int) -> None:
    chance = random.Random(seed)
    # its first step imports half of torch, which each rank would do again
    torch.optim.SGD([torch.zeros(1, requires_grad=True)]).step()
    with (folder / "kills.jsonl").open("w") as notes:
        for number in range(runs):
            kind = VICTIMS[number % len(VICTIMS)]
            told = one_run(folder / f"run{number}", kind, chance)
            notes.write(json.dumps(told | {"seed": seed}) + "\n")
            notes.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
