"""Routing: the expert of each token copy, as every router returns it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from moetraffic.errors import LayoutError

from .capacity import keep


@dataclass(frozen=True, kw_only=True, eq=False)
class Routing:
    """Expert assignment, weight and capacity status of every token copy.

    A copy is one token sent to one expert; copies beyond an expert's capacity stay in
    the list with ``kept`` false.  Token choice gives ``N = k T`` copies, token by
    token; other routers may give a token any number of copies, none included.
    """

    token: Tensor  # [N] int64, index of the token, 0 to T-1
    expert: Tensor  # [N] int64, global index of the expert, 0 to E-1
    weight: Tensor  # [N] float, factor of the expert's output, with gradient
    kept: Tensor  # [N] bool, false: dropped for want of capacity
    tokens: int  # T
    experts: int  # E
    auxiliary_loss: Tensor  # scalar with gradient, load balancing
    z_loss: Tensor  # scalar with gradient
    k: int | None = None  # copies of each token; None: not as many of each
    capacity: int | None = None  # copies that an expert takes; None: any number
    # [T, E] float with gradient, a token's shares of the experts, rows sum to 1; None:
    # this router's load is not balanced by a loss
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
        """Create a routing in which each token chooses k experts.

        Parameters
        ----------
        expert
            ``[T, K]`` int64, distinct within a row.
        weight
            ``[T, K]`` float.
        experts
            Number of experts E.
        capacity
            Copies that an expert takes, earlier tokens first; None keeps all.
        auxiliary_loss, z_loss
            Scalars.
        probabilities, balanced
            What balance losses are computed from, see the fields.
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
        """Concatenate the routings of several shards.

        Capacities were kept shard by shard; losses are the shards' means.

        Parameters
        ----------
        shards
            At least one, all of T tokens and the same router.
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
        """``[T, K]`` int64, the experts of each token (token choice only)."""
        return self._by_token(self.expert)

    @property
    def weight_tk(self) -> Tensor:
        """``[T, K]`` float, the weight of each choice (token choice only)."""
        return self._by_token(self.weight)

    @property
    def kept_tk(self) -> Tensor:
        """``[T, K]`` bool, whether each choice has room (token choice only)."""
        return self._by_token(self.kept)

    def demand(self) -> Tensor:
        """``[E]`` int64, copies that chose each expert, over capacity included."""
        return torch.bincount(self.expert, minlength=self.experts)

    def load(self) -> Tensor:
        """``[E]`` int64, copies that each expert takes: demand less dropped."""
        return torch.bincount(self.expert[self.kept], minlength=self.experts)

    def dropped(self) -> Tensor:
        """``[E]`` int64, copies that each expert has no room for."""
        return torch.bincount(self.expert[~self.kept], minlength=self.experts)

    def _by_token(self, values: Tensor) -> Tensor:
        if self.k is None:
            raise LayoutError(
                "a [T, K] view needs as many copies of each token, but k is None (not "
                "token choice): use the lists token, expert, weight and kept"
            )
        return values.view(self.tokens, self.k)


def _stacked(parts: list[Tensor | None]) -> Tensor | None:
    there = [part for part in parts if part is not None]
    return torch.cat(there) if there else None
