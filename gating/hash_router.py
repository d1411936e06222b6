"""Hash router: experts are selected by a hash of the token id."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from moetraffic.errors import LayoutError

from .capacity import limit
from .hashing import mixed
from .linear_gate import check_k
from .routing import Routing


class HashRouter(nn.Module):
    """Router with a fixed random assignment of token ids to experts.

    The router has no trainable parameters.  The tuple (seed, layer, token id, expert)
    is hashed, and a token's experts are those with the k largest hashes.  For k = 1
    each id has one uniformly drawn expert, which is the random hash of Roller et al.
    without a lookup table, so that no vocabulary size is needed.  The weight of each
    expert is 1/k.

    Parameters
    ----------
    experts
        Number of experts E.
    k
        Number of experts per token.
    capacity_factor
        An expert accepts ``ceil(capacity_factor k T / E)`` copies, those of earlier
        tokens first; None keeps all.
    seed
        Seed of the assignment, combined with the seed of :meth:`reseed`.

    Raises
    ------
    LayoutError
        If k is not between 1 and E; on routing, if there are no token ids.

    References
    ----------
    Roller et al., "Hash Layers", arXiv 2106.04426, section 3.1, random hash.
    """

    def __init__(
        self,
        experts: int,
        *,
        k: int = 1,
        capacity_factor: float | None = None,
        seed: int = 0,
    ) -> None:
        check_k(k, experts)
        super().__init__()
        self.experts = experts
        self.k = k
        self.capacity_factor = capacity_factor
        self.seed = seed
        self.reseed(0, 0)

    def reseed(self, seed: int, layer: int) -> None:
        """Set the assignment of token ids from a run's seed and a layer index."""
        self.key = (self.seed, seed, layer)

    def forward(self, x: Tensor, *, ids: Tensor | None = None) -> Routing:
        """Compute the expert assignment of tokens from their ``[T]`` int64 ids."""
        if ids is None:
            raise LayoutError(
                "the hash router routes by token ids, but the model gives none: pass "
                "ids=..., or use another router"
            )
        places = torch.arange(self.experts, device=x.device)
        hashes = mixed(*self.key, ids.reshape(-1, 1), places)  # [T, E]
        expert = hashes.topk(self.k, dim=-1).indices
        dtype = torch.promote_types(x.dtype, torch.float32)
        nothing = torch.zeros((), dtype=dtype, device=x.device)
        return Routing.token_choice(
            expert=expert,
            weight=torch.full(expert.shape, 1 / self.k, dtype=dtype, device=x.device),
            experts=self.experts,
            capacity=limit(self.capacity_factor, self.k, len(x), self.experts),
            auxiliary_loss=nothing,
            z_loss=nothing,
        )
