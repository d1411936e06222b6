"""Record a router of your own: torchrun --nproc-per-node 2 examples/own_router.py."""

import torch
import torch.distributed as dist
from torch import nn

from moetraffic import Recorder, capture

EXPERTS = 4


class MyGate(nn.Module):
    """Returns weights ``[T, 2]`` and expert ids ``[T, 2]``; no library knows it."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.scores = nn.Linear(hidden, EXPERTS, bias=False)

    def forward(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Choose two experts for each of the tokens ``[T, hidden]``."""
        weights, ids = self.scores(tokens).softmax(1).topk(2)
        return weights, ids


def main() -> None:
    """Route random tokens, as the MoE layer of a training would."""
    capture.router(MyGate, lambda inputs, output: output[1], experts=EXPERTS)
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    gate = MyGate(16)
    with Recorder("router.h5", k=2) as recorder:
        for _ in range(12):
            gate(torch.randn(64, 16))
            recorder.step(tokens=64)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
