"""Hash router: a fixed random expert for each token id, equal on all ranks and devices.

References
----------
Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014: the
finalizer of SplitMix64; its increment is 2^64 divided by the golden ratio.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from moetraffic.errors import LayoutError

from .capacity import limit
from .router import check_k
from .routing import Routing

_INCREMENT = 0x9E3779B97F4A7C15 - 2**64  # int64 wraps around as uint64 does
_FIRST = 0xBF58476D1CE4E5B9 - 2**64
_SECOND = 0x94D049BB133111EB - 2**64


def mixed(*keys: int | Tensor) -> Tensor:
    """Compute a 64-bit hash of integer keys, which depends on their order.

    The keys are integers, or int64 tensors that broadcast together; the result is int64
    of the broadcast shape, uniform over all 2^64 values.
    """
    state = torch.zeros((), dtype=torch.int64)
    for key in keys:
        if isinstance(key, Tensor) and key.device != state.device:
            state = state.to(key.device)
        state = _finalized((state ^ key) + _INCREMENT)
    return state


def _finalized(state: Tensor) -> Tensor:
    state = (state ^ _shifted(state, 30)) * _FIRST
    state = (state ^ _shifted(state, 27)) * _SECOND
    return state ^ _shifted(state, 31)


def _shifted(state: Tensor, bits: int) -> Tensor:
    """Shift int64 values right logically (torch's shift extends the sign)."""
    return (state >> bits) & ((1 << (64 - bits)) - 1)


class HashRouter(nn.Module):
    """Router with a fixed random assignment of token ids to experts.

    The router has no trainable parameters.  The tuple (seed, layer, token id, expert)
    is hashed, and a token's experts are those with the k largest hashes.  For k = 1
    each id has one uniformly drawn expert, which is the random hash of Roller et al.
    without a lookup table, so that no vocabulary size is needed.  The weight of each
    expert is 1/k.

    Parameters
    ----------
    experts, k, capacity_factor
        As of :class:`~.router.LinearGate`.
    seed
        Seed of the assignment, combined with the seed of :meth:`reseed`.

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
