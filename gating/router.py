"""What a router is: its protocols, and the linear gate that most are built on."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from moetraffic.errors import LayoutError
from moetraffic.workload.routing import ROUTERS, OptionValue, Setup

from .capacity import limit
from .losses import load_balancing_loss, router_z_loss
from .routing import Routing


class Router(Protocol):
    """Interface of a router, which is also an ``nn.Module``.

    Its random numbers are of torch's default generator, as dropout's are: reproducible
    with ``torch.manual_seed`` and under activation checkpointing.
    """

    def __call__(self, x: Tensor, *, ids: Tensor | None = None) -> Routing:
        """Route ``[T, h]`` token vectors; ``ids`` are ``[T]`` int64 token ids.

        Most routers ignore the ids; those that go by them refuse None.
        """


@runtime_checkable
class Adaptive(Protocol):
    """Interface of a router whose state is updated after each optimizer step."""

    def after_step(self, load_e: Tensor) -> None:
        """Update the state, on every rank alike, from the load ``[E]`` int64 of a step.

        Counted are the copies that chose each expert, over capacity included, of all
        micro-batches and data-parallel ranks.
        """


@runtime_checkable
class Seeded(Protocol):
    """Interface of a router with a random assignment that is fixed by a seed."""

    def reseed(self, seed: int, layer: int) -> None:
        """Draw a new random assignment from a run's seed and a global layer index."""


def check_k(k: int, experts: int) -> None:
    """Raise LayoutError unless k is between 1 and the number of experts."""
    if not 1 <= k <= experts:
        raise LayoutError(
            f"a token's k experts are distinct, but k is {k} and there are {experts} "
            f"experts: choose k between 1 and {experts}"
        )


def check_options(
    router: str, experts: int, k: int, **options: OptionValue | None
) -> None:
    """Raise LayoutError if an option is out of range or contradicts experts and k."""
    spec = ROUTERS[router]
    given = {name: value for name, value in options.items() if value is not None}
    setup = Setup(options=options, k=k, experts=experts, tokens=experts, virtual=False)
    for rule, _ in spec.broken_options(given) or spec.broken_rules(setup):
        raise LayoutError(f"{rule}: change one of these")


class LinearGate(nn.Module):
    """Base class of routers with a linear gate: logits ``x W^T`` per token and expert.

    Logits are computed in float32 (float64 for float64 input), regardless of the input
    dtype and of an enclosing autocast: routing in bfloat16 is unstable (Fedus et al.,
    arXiv 2101.03961, section 2.4, "selective precision").

    Parameters
    ----------
    hidden, experts, k
        Width h of a token vector, experts E, and experts per token, 1 to E.
    capacity_factor
        An expert accepts ``ceil(capacity_factor k T / E)`` copies, those of earlier
        tokens first; None keeps all (dropless).
    """

    def __init__(
        self,
        hidden: int,
        experts: int,
        *,
        k: int,
        capacity_factor: float | None = None,
    ) -> None:
        check_k(k, experts)
        super().__init__()
        self.hidden = hidden
        self.experts = experts
        self.k = k
        self.capacity_factor = capacity_factor
        # [E, h] N(0, 0.02^2), as in GPT-2
        self.weight = nn.Parameter(torch.empty(experts, hidden))
        nn.init.normal_(self.weight, std=0.02)

    def logits(self, x: Tensor) -> Tensor:
        """Compute the ``[T, E]`` logits of ``[T, h]`` token vectors."""
        dtype = torch.promote_types(x.dtype, torch.float32)
        with torch.autocast(x.device.type, enabled=False):
            return F.linear(x.to(dtype), self.weight.to(dtype))

    def token_choice(
        self,
        logits: Tensor,
        expert: Tensor,
        weight: Tensor,
        probabilities: Tensor | None = None,
        balanced: Tensor | None = None,
    ) -> Routing:
        """Create the routing of ``[T, K]`` experts and weights, with its losses.

        ``probabilities`` and ``balanced`` are those of :class:`~.routing.Routing`.
        """
        loss = logits.new_zeros(())
        if probabilities is not None:
            counted = expert if balanced is None else balanced
            loss = load_balancing_loss(probabilities, counted)
        return Routing.token_choice(
            expert=expert,
            weight=weight,
            experts=self.experts,
            capacity=limit(self.capacity_factor, self.k, len(logits), self.experts),
            auxiliary_loss=loss,
            z_loss=router_z_loss(logits),
            probabilities=probabilities,
            balanced=balanced,
        )

    def extra_repr(self) -> str:
        """Format the sizes and options for ``print(module)``."""
        own = {n: v for n, v in vars(self).items() if n[0] != "_" and n != "training"}
        return ", ".join(f"{name}={value}" for name, value in own.items())
