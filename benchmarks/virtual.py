"""What recording costs in virtual expert parallelism, and how long a large run takes.

64 ranks, 64 experts, 8 MoE layers: one run with a recorder and one without, a block of
steps of each in turn, so that both see the same machine.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from page import save

from moetraffic.capture import VirtualRecorder
from moetraffic.models.virtual_training import VirtualTraining
from moetraffic.patterns import Gating, Layout, ModelShape, Training, Workload

WORK = Workload(
    model=ModelShape(
        layers=8, hidden=64, heads=4, sequence=64, moe_every=1, experts=64
    ),
    gating=Gating(router="topk", k=2),
    layout=Layout(dp=64, ep=64),
    training=Training(micro_batch=1, virtual=True),
)


def measure(blocks: int, steps: int) -> dict[str, float]:
    plain, recorded = VirtualTraining(WORK), VirtualTraining(WORK)
    for training in (plain, recorded):
        training.iterate(0)  # the first allocates
    spent = {"plain": 0.0, "recorded": 0.0}
    step = 1
    on_recording = closing = 0.0
    with tempfile.TemporaryDirectory() as folder:
        for block in range(blocks):
            began = time.perf_counter()
            for at in range(step, step + steps):
                plain.iterate(at)
            spent["plain"] += time.perf_counter() - began
            with VirtualRecorder(Path(folder) / f"{block}.h5", workload=WORK) as told:
                began = time.perf_counter()
                for at in range(step, step + steps):
                    told.step(loss=recorded.iterate(at), tokens=recorded.tokens)
                spent["recorded"] += time.perf_counter() - began
                on_recording += told.spent_s
                began = time.perf_counter()
            closing += time.perf_counter() - began
            step += steps
    return {
        "steps": blocks * steps,
        "seconds_a_step": spent["plain"] / (blocks * steps),
        "ratio_recorded_over_plain": spent["recorded"] / spent["plain"],
        "share_of_the_training_thread": on_recording / spent["recorded"],
        "seconds_to_close_and_merge_a_block": closing / blocks,
    }


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--blocks", type=int, default=6)
    asked.add_argument("--steps", type=int, default=5)
    asked.add_argument("--json", type=Path, help="write the results to this file")
    told = asked.parse_args()
    save(told.json, measure(told.blocks, told.steps))


if __name__ == "__main__":
    main()
