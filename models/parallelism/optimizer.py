"""AdamW and the learning-rate schedule."""

from __future__ import annotations

from collections.abc import Sequence
from math import cos, pi

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from moetraffic.patterns import Training

FINAL_RATE = 0.1
"""The learning rate ends at this share of its maximum, as in nanoGPT."""

BETA_1, BETA_2 = 0.9, 0.95
"""As GPT-3's (Brown et al., arXiv 2005.14165, appendix B)."""

EPSILON = 1e-8


class AdamW:
    """Adam with decoupled weight decay (Loshchilov and Hutter, arXiv 1711.05101).

    Matrices decay, vectors (norms) do not; ``weight_decay`` is the share of a matrix
    that a step at learning rate 1 would take away.  The computation is torch's own, by
    its functional form: making a ``torch.optim.Optimizer`` imports the compiler and
    sympy, 5 s of every rank's start.
    """

    def __init__(
        self, parameters: Sequence[nn.Parameter], *, weight_decay: float
    ) -> None:
        self._parts = []
        for part, decay in decaying(parameters, weight_decay):
            means = [torch.zeros_like(local(p)) for p in part]  # of the gradient
            squares = [torch.zeros_like(m) for m in means]  # of its square
            # float32 whatever the parameter is: torch counts steps so
            steps = [torch.zeros((), device=p.device) for p in part]
            self._parts.append((part, means, squares, steps, decay))

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """Update the parameters with a given learning rate."""
        for parameters, means, squares, steps, decay in self._parts:
            adamw(
                [local(p) for p in parameters],
                [local(p.grad) for p in parameters if p.grad is not None],
                means,
                squares,
                [],
                steps,
                fused=True,
                amsgrad=False,
                beta1=BETA_1,
                beta2=BETA_2,
                lr=rate,
                weight_decay=decay,
                eps=EPSILON,
                maximize=False,
            )


def decaying(
    parameters: Sequence[nn.Parameter], weight_decay: float
) -> tuple[tuple[list[nn.Parameter], float], ...]:
    """Divide parameters into matrices, which decay, and vectors, which do not."""
    matrices = [p for p in parameters if p.dim() > 1]
    vectors = [p for p in parameters if p.dim() == 1]
    return (matrices, weight_decay), (vectors, 0.0)


def local(tensor: Tensor) -> Tensor:
    """Return this rank's shard of a DTensor, or the tensor itself if not sharded."""
    found: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return found


def learning_rate(plan: Training, iteration: int) -> float:
    """Compute the learning rate: linear warm-up, then cosine decay to a tenth.

    The maximum is reached after ``warmup`` iterations, which count from 0.  The
    schedule follows Loshchilov and Hutter, arXiv 1608.03983.
    """
    if iteration < plan.warmup:
        return plan.learning_rate * (iteration + 1) / plan.warmup
    done = (iteration - plan.warmup) / max(plan.iterations - plan.warmup, 1)
    share = FINAL_RATE + (1 - FINAL_RATE) * 0.5 * (1 + cos(pi * done))
    return plan.learning_rate * share
