"""Exchange rows in training and evaluation steps, and capture them: an input of parity.

``python -m torch.distributed.run --nproc-per-node 2 evaluation.py OUTPUT``
"""

import sys

import torch
import torch.distributed as dist

from moetraffic import Recorder, capture

EXPERTS, WIDTH, TOKENS = 4, 8, 64


def exchange(layer: int, generator: torch.Generator) -> None:
    """Send each token's row to the rank of its expert, and back."""
    world = dist.get_world_size()
    experts = torch.randint(0, EXPERTS, (TOKENS,), generator=generator)
    counts = torch.bincount(experts, minlength=EXPERTS)
    capture.routing(layer, counts)
    sent = counts.view(world, -1).sum(1)
    received = torch.empty_like(sent)
    with capture.at(layer=layer, label="count_exchange"):
        dist.all_to_all_single(received, sent)
    rows, arrived = torch.zeros(TOKENS, WIDTH), torch.empty(int(received.sum()), WIDTH)
    with capture.at(layer=layer, phase="dispatch"):
        dist.all_to_all_single(arrived, rows, received.tolist(), sent.tolist())
    with capture.at(layer=layer, phase="combine"):
        dist.all_to_all_single(rows, arrived, sent.tolist(), received.tolist())


def main() -> None:
    """Evaluate after every second of eight training steps; skip one."""
    dist.init_process_group("gloo")
    generator = torch.Generator().manual_seed(dist.get_rank())
    with Recorder(sys.argv[1], model="exchanges", k=1) as recorder:
        for step in range(8):
            for layer in range(2):
                exchange(layer, generator)
            kind = "skipped" if step == 5 else "train"
            recorder.step(loss=1 / (1 + step), tokens=TOKENS, kind=kind)
            if step % 2:
                exchange(0, generator)
                recorder.step(kind="evaluation")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
