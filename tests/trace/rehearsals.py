"""Real training on gloo ranks, recorded; ``python rehearsals.py FOLDER NAME ...``.

The logs are left as they are, for the tests to strip and find again.
"""

from __future__ import annotations

import os
import sys
import traceback
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from moetraffic.capture import Recorder
from moetraffic.models import connect, train
from moetraffic.patterns import Gating, Layout, ModelShape, Training, Workload

SHAPE = {"layers": 4, "hidden": 16, "heads": 2, "sequence": 12, "experts": 8}
PLAN = {"iterations": 5, "micro_batch": 2, "accumulation": 2, "seed": 3}


def work(layout: dict[str, Any], **changes: Any) -> Workload:
    def part(of: Any, base: dict[str, Any]) -> Any:
        names = of.__dataclass_fields__
        return of(**base, **{n: v for n, v in changes.items() if n in names})

    plan = {n: v for n, v in PLAN.items() if n not in changes}
    return Workload(
        model=part(ModelShape, SHAPE),
        gating=part(Gating, {}),
        layout=Layout(**layout),
        training=part(Training, plan),
    )


PADDED: dict[str, Any] = {"router": "switch", "k": 1, "dispatch": "padded"}
DROPPED: dict[str, Any] = {"dispatch": "dropped", "capacity_factor": 0.8}
WORKS = {
    "dropped": work({"dp": 4, "ep": 2}, accumulation=3, **DROPPED),
    "padded-again": work({"dp": 2, "ep": 2}, recompute=True, **PADDED),
    "dropless": work({"dp": 4, "ep": 4}),
    "alone": work({"dp": 2, "ep": 2}, accumulation=1),
    "padded": work({"dp": 2, "ep": 2}, **PADDED),
    "again": work({"dp": 2, "ep": 2}, recompute=True),
    "pipeline": work({"dp": 2, "pp": 2, "ep": 2}, accumulation=4),
    "short-pipeline": work({"dp": 2, "pp": 2, "ep": 2}, recompute=True, **PADDED),
    "tensor": work({"dp": 2, "tp": 2, "ep": 2}),
    "shared": work({"dp": 2, "ep": 2}, shared_ffn=16),
    "zero1": work({"dp": 2, "ep": 2, "zero": 1}),
    "zero3": work({"dp": 2, "ep": 2, "zero": 3}),
}


def play(folder: Path, name: str, rank: int) -> int:
    workload = WORKS[name]
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        store=dist.FileStore(str(folder / f"{name}.store"), workload.layout.world),
        rank=rank,
        world_size=workload.layout.world,
        timeout=timedelta(seconds=60),
    )
    try:
        groups = connect(workload.layout)
        recorder = Recorder(
            folder / f"{name}.h5",
            workload=workload,
            groups=groups.by_kind(),
        ).start()
        train(workload, recorder, groups=groups)
        recorder.close(merged=False)
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        dist.destroy_process_group()
    return 0


def main(folder: Path, names: list[str]) -> int:
    ranks = []
    for name in names:  # side by side: they mostly wait
        for rank in range(WORKS[name].layout.world):
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    code = play(folder, name, rank)
                finally:
                    sys.stderr.flush()
                    os._exit(code)
            ranks.append(child)
    ends = [os.waitstatus_to_exitcode(os.waitpid(r, 0)[1]) for r in ranks]
    return sum(code != 0 for code in ends)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
