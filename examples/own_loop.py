"""Capture your own training loop: torchrun --nproc-per-node 2 examples/own_loop.py."""

import torch
import torch.distributed as dist

from moetraffic import Recorder, capture


def main() -> None:
    """Send rows to experts on other ranks, as a MoE layer does, and record it."""
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    generator = torch.Generator().manual_seed(rank)
    with Recorder("own.h5", model="an own loop", k=1) as recorder:  # 1
        for _ in range(20):
            experts = torch.randint(0, 2 * world, (64,), generator=generator)
            counts = torch.bincount(experts, minlength=2 * world)
            capture.routing(0, counts)  # 2: what the router wanted
            sent = counts.view(world, 2).sum(1)
            received = torch.empty_like(sent)
            dist.all_to_all_single(received, sent)
            rows = torch.randn(64, 8)
            arrived = torch.empty(int(received.sum()), 8)
            with capture.at(layer=0, phase="dispatch"):  # 3: where the next call is
                dist.all_to_all_single(arrived, rows, received.tolist(), sent.tolist())
            recorder.step(tokens=64)  # 4: the step is over
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
