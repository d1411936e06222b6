"""Protocols that routers implement for MoE layers and training loops."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from torch import Tensor

from .routing import Routing


class Router(Protocol):
    """Interface of a router, which is also an ``nn.Module``.

    A router takes random numbers from torch's default generator, as dropout does, so
    that they are reproducible with ``torch.manual_seed`` and under activation
    checkpointing.
    """

    def __call__(self, x: Tensor, *, ids: Tensor | None = None) -> Routing:
        """Compute the expert assignment of token vectors.

        Parameters
        ----------
        x
            ``[T, h]`` float, the token vectors.
        ids
            ``[T]`` int64, the token ids.  Ignored by routers that do not use them;
            required by those that do.
        """


@runtime_checkable
class Adaptive(Protocol):
    """Interface of a router whose state is updated after each optimizer step."""

    def after_step(self, load_e: Tensor) -> None:
        """Update the router's state from the expert load of an optimizer step.

        Every rank calls this with the same values, so that routers stay equal.

        Parameters
        ----------
        load_e
            ``[E]`` int64, token copies that chose each expert in this step, over
            capacity included, summed over micro-batches and data-parallel ranks.
        """


@runtime_checkable
class Seeded(Protocol):
    """Interface of a router with a random assignment that is fixed by a seed."""

    def reseed(self, seed: int, layer: int) -> None:
        """Draw a new random assignment from a run's seed and a global layer index."""
