"""Synthetic router with Zipf-distributed expert popularity."""

from __future__ import annotations

import torch
from torch import Tensor

from .hashing import mixed, uniform
from .router import LinearGate
from .routing import Routing


class SkewedRouter(LinearGate):
    """Synthetic router with skewed demand and hot experts that drift over time.

    A token's k experts are sampled without replacement, expert i with probability
    proportional to ``rank_i^-exponent``.  Popularity ranks are a permutation of the
    experts, shifted by one position every ``period`` steps.  The sample is a function
    of (seed, layer, step, position in the micro-batch, token id): it is equal in a
    recomputed forward pass, in another run and on another device, and does not depend
    on the model's weights.

    The weight of an expert is the softmax of the gate, over the chosen experts where
    k > 1, so that the gate is trained as in other routers; balance losses have no
    effect on the load.

    Parameters
    ----------
    hidden, experts, k, capacity_factor
        As of :class:`~.router.LinearGate`.
    exponent
        Exponent of Zipf's law; 0 is uniform.
    period
        Steps between shifts of the popularity ranks by one expert; 0: no shift.
    seed
        Seed of the permutation and the samples.

    References
    ----------
    Sampling without replacement by the k largest of log p + Gumbel noise: Kool et al.,
    "Stochastic Beams and Where to Find Them", arXiv 1903.06059, section 2.3.
    """

    step: Tensor

    def __init__(
        self,
        hidden: int,
        experts: int,
        *,
        k: int = 1,
        capacity_factor: float | None = None,
        exponent: float = 1.0,
        period: int = 50,
        seed: int = 0,
    ) -> None:
        super().__init__(hidden, experts, k=k, capacity_factor=capacity_factor)
        self.exponent = exponent
        self.period = period
        self.seed = seed
        self.register_buffer("step", torch.zeros((), dtype=torch.int64))
        self.reseed(0, 0)

    def reseed(self, seed: int, layer: int) -> None:
        """Set the seed of ranks and samples from a run's seed and a layer index."""
        self.key = (self.seed, seed, layer)

    def after_step(self, load_e: Tensor) -> None:
        """Advance the step counter; the load ``[E]`` int64 is ignored."""
        self.step += 1

    def popularity(self) -> Tensor:
        """Compute expert probabilities at the current step, ``[E]`` float64, sum 1."""
        device = self.step.device
        places = torch.arange(self.experts, device=device)
        order = mixed(*self.key, places).argsort()  # the expert at each position
        moved = self.step // self.period if self.period else torch.zeros_like(self.step)
        popularity = torch.empty(self.experts, dtype=torch.float64, device=device)
        # position `moved` holds the most popular expert, the next positions the next
        # ones
        hot_first = order[(places + moved) % self.experts]
        popularity[hot_first] = (places + 1).double() ** -self.exponent
        return popularity / popularity.sum()

    def forward(self, x: Tensor, *, ids: Tensor | None = None) -> Routing:
        """Compute the expert assignment of tokens, from their ``[T]`` ids if given."""
        expert = self._drawn(len(x), ids)
        logits = self.logits(x)
        probabilities = logits.softmax(-1)
        weight = probabilities.gather(-1, expert)
        if self.k > 1:
            weight = weight / weight.sum(-1, keepdim=True)
        return self.token_choice(logits, expert, weight, probabilities)

    def _drawn(self, tokens: int, ids: Tensor | None) -> Tensor:
        """Sample the experts of each token without replacement, ``[T, K]`` int64."""
        device = self.step.device
        place = torch.arange(tokens, device=device).unsqueeze(1)
        what = torch.zeros_like(place) if ids is None else ids.reshape(-1, 1)
        experts = torch.arange(self.experts, device=device)
        drawn = uniform(*self.key, self.step, place, what, experts)  # [T, E]
        gumbel = -(-drawn.log()).log()
        keys = self.popularity().log() + gumbel
        return keys.topk(self.k, dim=-1).indices
