"""Hash router: a token's id determines its experts."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from moetraffic.errors import LayoutError

from .capacity import limit
from .hashing import mixed
from .linear_gate import check_k
from .routing import Routing


class HashRouter(nn.Module):
    """A fixed random assignment of token ids to experts; nothing is learned.

    What is hashed is (seed, layer, token id, expert): a token's experts are the k of
    largest hash.  For k = 1 each id has one expert, uniformly drawn, which is the
    paper's random hash without its table: no vocabulary size is needed.  The weight is
    1/k: the output of the expert as it is (the paper's k = 1), their mean for more.

    Parameters
    ----------
    experts
        Number of experts E.
    k
        Experts of a token.
    capacity_factor
        An expert takes ``ceil(capacity_factor k T / E)`` copies, those of earlier
        tokens first; None keeps all.
    seed
        Draws another assignment.

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
        """Draw a new assignment from the run's seed and the layer's index."""
        self.key = (self.seed, seed, layer)

    def forward(self, x: Tensor, *, ids: Tensor | None = None) -> Routing:
        """Route ``[T, h]`` token vectors by their ``[T]`` int64 ids."""
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

    def extra_repr(self) -> str:
        """The sizes, for ``print(module)``."""
        return f"experts={self.experts}, k={self.k}, key={self.key}"
