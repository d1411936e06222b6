"""Protocols that routers implement for MoE layers and training loops."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from torch import Tensor

from .routing import Routing


class Router(Protocol):
    """Interface of a router, which is also an ``nn.Module``.

    What a router draws at random it takes from torch's default generator, as dropout
    does: ``torch.manual_seed`` repeats it, and activation checkpointing restores it.
    """

    def __call__(self, x: Tensor, *, ids: Tensor | None = None) -> Routing:
        """Route token vectors.

        Parameters
        ----------
        x
            ``[T, h]`` float, the token vectors.
        ids
            ``[T]`` int64, the token ids.  Routers that do not route by them ignore
            them; one that does refuses None.
        """
        ...


@runtime_checkable
class Adaptive(Protocol):
    """A router with state that changes from step to step."""

    def after_step(self, load_e: Tensor) -> None:
        """Update the state after an optimizer step.

        Every rank calls it with the same values, so that routers stay equal.

        Parameters
        ----------
        load_e
            ``[E]`` int64, token copies that chose each expert in this step, over
            capacity included, summed over micro-batches and data-parallel ranks.
        """
        ...


@runtime_checkable
class Seeded(Protocol):
    """A router that holds a random assignment, drawn once."""

    def reseed(self, seed: int, layer: int) -> None:
        """Draw a new assignment from the run's seed and the layer's global index."""
        ...
