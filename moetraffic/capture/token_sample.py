"""Sample of the tokens of a routing whose experts are recorded.

Tokens are drawn from a random stream of their own: one from each of as many equal parts
of the micro-batch as tokens are wanted, so that no position in a sequence is preferred.
Drawing changes no state of the training.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from moetraffic.arrays import Int64
from moetraffic.capture.annotate import shown
from moetraffic.trace.choices import ExpertIds, expert_ids


class TokenSample:
    """Stratified random sample of S ``tokens``, a new one for each routing; 0: none."""

    def __init__(self, tokens: int, seed: int | Sequence[int]) -> None:
        self.tokens = tokens
        self._rng = np.random.default_rng(seed)

    def positions(self, count: int) -> Int64:
        """Draw the positions of sampled tokens among ``count``, ``[min(S, count)]``."""
        if count <= self.tokens:
            return np.arange(count)
        edges = np.arange(self.tokens + 1) * count // self.tokens
        return self._rng.integers(edges[:-1], edges[1:])

    def take(self, chosen: Tensor) -> Tensor:
        """Copy the rows of sampled tokens, on the device of ``chosen``.

        ``chosen`` are ``[..., k]`` integer ids of the experts of each token (-1 for
        none), or a mask ``[..., E]`` bool.
        """
        tensor = isinstance(chosen, Tensor) and chosen.dim() >= 2
        if not tensor or chosen.is_floating_point() or chosen.is_complex():
            raise ValueError(
                "the experts of tokens are ids [T, k] or a mask [T, E], not "
                f"{shown(chosen)}"
            )
        rows = chosen.detach().reshape(-1, chosen.shape[-1])
        positions = torch.from_numpy(self.positions(len(rows)))
        return rows.index_select(0, positions.to(rows.device))


def choice_ids(taken: Tensor, experts: int) -> ExpertIds:
    """Convert rows of :meth:`TokenSample.take` to ids ``[S, k]``, -1 for none.

    This waits for their device.  An id that is no expert becomes -1.
    """
    values = taken.cpu().numpy()
    if values.dtype != np.bool_:
        is_expert = (values >= 0) & (values < experts)
        return np.where(is_expert, values, -1).astype(np.int16)
    if values.shape[1] != experts:
        raise ValueError(f"a mask has {experts} columns, not {values.shape[1]}")
    return expert_ids(values)
