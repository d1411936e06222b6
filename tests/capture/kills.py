"""Kill ranks of captures at random times; note what each had recorded by then.

``python kills.py FOLDER`` imports torch once and forks the ranks of each run.  A rank
notes every step that it has ended in ``progress-<rank>`` (a byte a step).  Victims are
one rank, or all of them at once, which is what the death of their launcher does.
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

import torch
import torch.distributed as dist

from moetraffic.capture import Recorder
from moetraffic.models import connect, train
from moetraffic.patterns import Gating, ModelShape, ParallelLayout, Training, Workload

RUNS, RANKS, WINDOW = 18, 2, 16
WORK = Workload(
    model=ModelShape(layers=2, hidden=16, heads=1, sequence=16, experts=4),
    gating=Gating(k=2),
    layout=ParallelLayout(dp=RANKS, ep=RANKS),
    training=Training(iterations=100_000, micro_batch=1),
)


def rank_program(folder: Path, rank: int, corpus: object) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        store=dist.FileStore(str(folder / "store"), RANKS),
        rank=rank,
        world_size=RANKS,
        timeout=timedelta(seconds=20),
    )
    done = os.open(folder / f"progress-{rank}", os.O_CREAT | os.O_WRONLY)
    groups = connect(WORK.layout)
    with Recorder(
        folder / "run.h5", workload=WORK, groups=groups.by_kind(), window=WINDOW
    ) as recorder:
        train(
            WORK,
            recorder,
            lambda *_: os.write(done, b"."),
            groups=groups,
            corpus=corpus,  # type: ignore[arg-type]
        )


def one_run(folder: Path, chance: random.Random, corpus: object) -> dict[str, object]:
    folder.mkdir()
    ranks = []
    for rank in range(RANKS):
        child = os.fork()
        if child == 0:
            try:
                sys.stderr = open(folder / f"stderr-{rank}", "w")  # noqa: SIM115
                rank_program(folder, rank, corpus)
            finally:
                os._exit(1)
        ranks.append(child)
    deadline = time.monotonic() + 20
    while not all(
        (folder / f"progress-{r}").exists()
        and (folder / f"progress-{r}").stat().st_size > WINDOW
        for r in range(RANKS)
    ):
        assert time.monotonic() < deadline, (folder / "stderr-0").read_text()
        time.sleep(0.005)
    time.sleep(chance.uniform(0, 0.6))
    victims = chance.choice([[0], [1], [0, 1]])
    for victim in victims:
        os.kill(ranks[victim], signal.SIGKILL)
    for child in ranks:
        os.waitpid(child, 0)
    steps = [(folder / f"progress-{r}").stat().st_size for r in range(RANKS)]
    return {"run": folder.name, "victims": victims, "steps": steps, "window": WINDOW}


def main(folder: Path) -> None:
    from moetraffic.models.corpus import load

    corpus = load("", sequence=16, vocabulary=256)
    chance = random.Random(7)
    with (folder / "kills.jsonl").open("w") as notes:
        for number in range(RUNS):
            told = one_run(folder / f"run{number}", chance, corpus)
            notes.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
