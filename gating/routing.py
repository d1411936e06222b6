"""Result of a router: expert, weight and capacity status of each token copy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from moetraffic.errors import LayoutError

from .capacity import keep


@dataclass(frozen=True, kw_only=True, eq=False)
class Routing:
    """Expert, weight and capacity status of each token copy of a micro-batch.

    A copy is one token sent to one expert; copies beyond an expert's capacity stay in
    the list with ``kept`` false.  Under token choice there are ``N = k T`` copies,
    ordered by token; with other routers a token may have any number of copies,
    including none.
    """

    token: Tensor  # [N] int64, index of the token, 0 to T-1
    expert: Tensor  # [N] int64, global index of the expert, 0 to E-1
    weight: Tensor  # [N] float, factor of the expert's output, with gradient
    kept: Tensor  # [N] bool, false: dropped because of the capacity
    tokens: int  # T
    experts: int  # E
    auxiliary_loss: Tensor  # scalar with gradient, load balancing
    z_loss: Tensor  # scalar with gradient
    k: int | None = None  # copies per token; None: varies between tokens
    capacity: int | None = None  # maximum copies per expert; None: unlimited
    # [T, E] float with gradient, expert probabilities of each token, rows sum to 1;
    # None: this router has no balance loss
    probabilities: Tensor | None = None
    # [T, J] int64, the experts that balance losses count for each token; None: `expert`
    balanced: Tensor | None = None

    @classmethod
    def token_choice(
        cls,
        *,
        expert: Tensor,
        weight: Tensor,
        experts: int,
        capacity: int | None,
        auxiliary_loss: Tensor,
        z_loss: Tensor,
        probabilities: Tensor | None = None,
        balanced: Tensor | None = None,
    ) -> Routing:
        """Create a routing from ``[T, K]`` experts, distinct in a row, and weights.

        ``capacity`` is as of :func:`~.capacity.keep`, None keeps all; the rest is as
        the attributes.
        """
        tokens, k = expert.shape
        chosen = expert.reshape(-1)
        return cls(
            token=torch.arange(tokens, device=expert.device).repeat_interleave(k),
            expert=chosen,
            weight=weight.reshape(-1),
            kept=torch.ones_like(chosen, dtype=torch.bool)
            if capacity is None
            else keep(chosen, experts, capacity),
            tokens=tokens,
            experts=experts,
            auxiliary_loss=auxiliary_loss,
            z_loss=z_loss,
            k=k,
            capacity=capacity,
            probabilities=probabilities,
            balanced=balanced,
        )

    @classmethod
    def joined(cls, shards: Sequence[Routing]) -> Routing:
        """Concatenate the routings of several data-parallel shards.

        All have T tokens and are from the same router.  Capacity has been applied
        within each shard; losses are means over shards.
        """
        first = shards[0]
        token = [s.token + at * first.tokens for at, s in enumerate(shards)]
        return replace(
            first,
            token=torch.cat(token),
            expert=torch.cat([s.expert for s in shards]),
            weight=torch.cat([s.weight for s in shards]),
            kept=torch.cat([s.kept for s in shards]),
            tokens=first.tokens * len(shards),
            auxiliary_loss=torch.stack([s.auxiliary_loss for s in shards]).mean(),
            z_loss=torch.stack([s.z_loss for s in shards]).mean(),
            probabilities=_stacked([s.probabilities for s in shards]),
            balanced=_stacked([s.balanced for s in shards]),
        )

    @property
    def expert_tk(self) -> Tensor:
        """Experts of each token, ``[T, K]`` int64 (token choice only)."""
        if self.k is None:
            raise LayoutError(
                "a [T, K] view needs as many copies of each token, but k is None (not "
                "token choice): use the lists token, expert, weight and kept"
            )
        return self.expert.view(self.tokens, self.k)

    def chosen(self) -> Tensor:
        """Return the experts of each token, dropped copies included.

        They are ``[T, k]`` int64 ids, or a mask ``[T, E]`` where k varies.
        """
        if self.k is not None:
            return self.expert_tk
        mask = self.expert.new_zeros(self.tokens, self.experts, dtype=torch.bool)
        mask[self.token, self.expert] = True
        return mask

    def demand(self) -> Tensor:
        """Count token copies per expert, kept and dropped, ``[E]`` int64."""
        return torch.bincount(self.expert, minlength=self.experts)

    def load(self) -> Tensor:
        """Count kept token copies per expert, ``[E]`` int64."""
        return torch.bincount(self.expert[self.kept], minlength=self.experts)

    def dropped(self) -> Tensor:
        """Count token copies per expert that exceed its capacity, ``[E]`` int64."""
        return torch.bincount(self.expert[~self.kept], minlength=self.experts)


def _stacked(parts: list[Tensor | None]) -> Tensor | None:
    there = [part for part in parts if part is not None]
    return torch.cat(there) if there else None
