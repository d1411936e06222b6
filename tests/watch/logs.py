"""Logs of a small annotated run, as its ranks would write them."""

from __future__ import annotations

import os
import time
from array import array
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from moetraffic.arrays import Int64
from moetraffic.trace.merge import log_format as log
from moetraffic.trace.model import Meta

LAYERS, EXPERTS, ROW, TOKENS, K = 2, 4, 64, 96, 2
STEP_NS, CALL_NS = 1_000_000, 100_000


def routed(rank: int, step: int, layer: int) -> Int64:
    """Token copies of a rank for each expert, ``[E]``."""
    rng = np.random.default_rng([rank, step, layer])
    return rng.multinomial(TOKENS * K, [0.4, 0.3, 0.2, 0.1])


class RankWriter:
    """Log of one rank; in each layer of a step there are a routing and a dispatch."""

    def __init__(self, folder: Path, rank: int, *, world: int = 2) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.rank, self.world = folder, rank, world
        self.calls = self.file = self.step = 0
        self.state(0)
        self.begin_file()

    @property
    def path(self) -> Path:
        """The newest file."""
        return log.log_file(self.folder, self.rank, self.file)

    def state(self, steps: int, *, closed: bool = False) -> None:
        state = log.State(steps=steps, closed=closed)
        log.state_file(self.folder, self.rank).write_bytes(log.STATE.pack(*state))

    def begin_file(self) -> None:
        meta = Meta(world=self.world, k=K, experts=EXPERTS, ep=self.world)
        about = {
            "meta": asdict(meta),
            "rank": self.rank,
            "node": f"node{self.rank}",
            "placement": {},
            "begun": 0,
            "threads": ["main"],
        }
        contexts = [(layer, "dispatch", "", False, 0, 0) for layer in range(LAYERS)]
        define = [
            ("group", {"kind": "ep", "ranks": [*range(self.world)]}),
            *(("context", context) for context in contexts),
            ("dtype", "float32"),
            ("thread", "main"),
        ]
        head = {"about": about, "steps": self.step, "optimizer_steps": 0}
        self.path.write_bytes(log.message({**head, "define": define}))
        self.age()

    def age(self, age_s: float = 2.0) -> None:
        """Let the newest file be as if it was written some time ago."""
        written_s = time.time() - age_s
        os.utime(self.path, (written_s, written_s))

    def rotate(self) -> None:
        """Begin another file."""
        self.file += 1
        self.begin_file()

    def write(self, until: int) -> None:
        """Write the steps before this one that are not written yet, as one frame."""
        words = array("q")
        for step in range(self.step, until):
            for layer in range(LAYERS):
                words += self.layer(step, layer)
            words += self.end(step)
        self.append(words)
        self.step = until
        self.state(until)

    def append(self, words: array[int]) -> None:
        with self.path.open("ab") as file:
            file.write(log.frame(log.WORDS, words.tobytes()))
        self.age()

    def layer(self, step: int, layer: int) -> array[int]:
        """Records of one layer."""
        copies = routed(self.rank, step, layer)
        held = EXPERTS // self.world
        sent = copies.reshape(self.world, held).sum(axis=1)
        mine = slice(self.rank * held, (self.rank + 1) * held)
        received = [routed(r, step, layer)[mine].sum() for r in range(self.world)]
        begin = STEP_NS * step + 3 * CALL_NS * layer + CALL_NS
        number = self.calls
        self.calls += 1
        routing = [number, begin, 0, layer, layer, 0, 0, 1]
        call = [number, begin, log.OPERATIONS.index("all_to_all"), 0, layer, 0, 0]
        call += [0, 1, -1, -1, -1, -1, 0, ROW, copies.sum(), sum(received)]
        call += [self.world, self.world, *sent, *received]
        return array(
            "q",
            [
                *record(log.ROUTED, routing),
                *record(log.COUNTS, [number, EXPERTS, 0, 0, 0, *copies]),
                *record(log.CALL, call),
                *record(log.END, [number, begin, begin + CALL_NS]),
            ],
        )

    def end(self, step: int) -> array[int]:
        """Record of the end of a step."""
        loss = np.float64(5 - step / 100).view(np.int64)
        fields = [step, STEP_NS * (step + 1), TOKENS, 0, loss]
        return array("q", record(log.STEP, fields))

    def close(self) -> None:
        self.state(self.step, closed=True)


def record(kind: int, fields: Sequence[Any]) -> list[int]:
    return [kind, len(fields) + 2, *map(int, fields)]


def write_run(folder: Path, steps: int, *, world: int = 2) -> list[RankWriter]:
    """Write the first steps of all ranks."""
    writers = [RankWriter(folder, rank, world=world) for rank in range(world)]
    for writer in writers:
        writer.write(steps)
    return writers
