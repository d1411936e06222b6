"""Kill ranks of captures at random times, and judge the traces.

``python kills.py FOLDER RUNS SEED`` imports torch once and forks the ranks of each run.
A rank notes every step that it has ended in ``progress-<rank>`` (a byte a step), and
its tokens and splits are functions of the step, so that the trace can be compared.

Victims are a rank, or all ranks at once (as when their launcher dies).
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from moetraffic.capture import Recorder
from moetraffic.trace import ALL_TO_ALL
from moetraffic.trace.merge.merging import merge
from moetraffic.trace.merge.rank_log import read_rank

RANKS = 2
VICTIMS = ("rank", "all ranks")
PACES_S = (0.0, 0.001, 0.005, 0.02)
FIRST_STEPS = 16  # that all ranks end before a kill


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
    with Recorder(folder / "run.h5") as recorder:
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


def progress(folder: Path) -> list[int]:
    """Steps that each rank has ended."""
    files = [folder / f"progress-{rank}" for rank in range(RANKS)]
    return [file.stat().st_size if file.exists() else 0 for file in files]


def one_run(folder: Path, kind: str, chance: random.Random) -> dict[str, Any]:
    """Run a training, kill, and judge what the trace says."""
    folder.mkdir()
    pace_s, victim = chance.choice(PACES_S), chance.randrange(RANKS)
    marked = chance.random() < 0.7  # whether the program calls step()
    ranks = started(folder, pace_s, marked)
    deadline = time.monotonic() + 120
    while min(progress(folder)) <= FIRST_STEPS:
        assert time.monotonic() < deadline, (folder / "stderr-0").read_text()
        time.sleep(0.005)
    time.sleep(chance.uniform(0, 0.6))
    dead = [victim] if kind == "rank" else list(range(RANKS))
    for rank in dead:
        os.kill(ranks[rank], signal.SIGKILL)
    for child in ranks:
        os.waitpid(child, 0)
    steps = progress(folder)
    merged = merge(folder / "run.h5.logs")
    lost = lost_steps(folder / "run.h5.logs")
    wrong = list(merged.contradictions)
    if sorted(lost) != dead:
        wrong.append(f"not closed are ranks {sorted(lost)}: {merged.missing}")
    if sum("is lost" in s or "are lost" in s for s in merged.missing) != len(dead):
        wrong.append(f"the loss is not stated: {merged.missing}")
    wrong += judged(merged.trace, steps, lost) + contents(merged.trace)
    return {
        "run": folder.name,
        "kind": kind,
        "pace_s": pace_s,
        "marked": marked,
        "victim": victim,
        "steps": steps,
        "load": os.getloadavg()[0],
        "wrong": wrong,
        "lost": [lost.get(rank, 0) for rank in range(RANKS)],
    }


def lost_steps(folder: Path) -> dict[int, int]:
    """Steps that are stated to be lost, by rank that did not close its log."""
    records = [read_rank(folder, rank) for rank in range(RANKS)]
    return {r.rank: r.lost_steps for r in records if not r.closed}


def kept(trace: Any) -> list[int]:
    """Steps of each rank in a trace."""
    return [int((trace.steps.end[:, r] != np.iinfo("i8").min).sum()) for r in (0, 1)]


def judged(trace: Any, steps: list[int], lost: dict[int, int]) -> list[str]:
    """What a trace says of its steps that is not true."""
    wrong = []
    iterations = trace.steps.iteration
    if iterations.tolist() != list(range(len(iterations))):
        wrong.append("iterations are missing")
    for rank, there in enumerate(kept(trace)):
        mine = trace.steps.end[:, rank] != np.iinfo("i8").min
        if not mine[:there].all():
            wrong.append(f"rank {rank} has a gap")
        # a rank may be killed between the end of a step and its note of it
        if there + lost.get(rank, 0) - steps[rank] not in (0, 1):
            wrong.append(
                f"rank {rank} ended {steps[rank]} steps, of which {there} are kept, "
                f"and {lost.get(rank, 0)} should be lost"
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
