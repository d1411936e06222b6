"""Training that torchrun restarts: ``torchrun ... -m tests.capture.programs.elastic``.

Rank 1 ends with SIGKILL in the first life; the second begins at step 5.  The truth is
in ``FOLDER/life0`` and ``FOLDER/life1``.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from tests.capture.programs.pieces import EVERY_OTHER, data, stack, train
from tests.capture.shapes.truth import Truth

STEPS, CHECKPOINT, KILL = 12, 5, 7


def main(folder: Path) -> None:
    life = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    rank = int(os.environ["RANK"])
    path = folder / f"life{life}" / f"truth-{rank}.json"
    path.parent.mkdir(exist_ok=True)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    truth = Truth(path)
    truth.lifted = EVERY_OTHER
    module = stack(truth, 2)
    optimizer = torch.optim.SGD(module.parameters(), 0.01)
    for step in range(CHECKPOINT if life else 0, STEPS):
        if (life, rank, step) == (0, 1, KILL):
            os.kill(os.getpid(), signal.SIGKILL)
        train(truth, module, optimizer, data(truth, step))
        truth.save()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
