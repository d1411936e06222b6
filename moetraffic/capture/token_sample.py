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

from moetraffic.arrays import Int64, UInt8
from moetraffic.trace.choices import pack, packed_bytes


class TokenSample:
    """Stratified random sample of tokens, a new one for each routing.

    ``tokens`` is the number S of tokens to sample of each routing, 0 for none; the seed
    is different for each rank.
    """

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

        Raises
        ------
        ValueError
            If it is neither.
        """
        valid = isinstance(chosen, Tensor) and chosen.dim() >= 2
        if not valid or chosen.is_floating_point() or chosen.is_complex():
            raise ValueError(
                "the experts of tokens are ids [T, k] or a mask [T, E], not "
                + (
                    f"{chosen.dtype} of shape {tuple(chosen.shape)}"
                    if isinstance(chosen, Tensor)
                    else type(chosen).__name__
                )
            )
        rows = chosen.detach().reshape(-1, chosen.shape[-1])
        at = torch.from_numpy(self.positions(len(rows)))
        return rows.index_select(0, at.to(rows.device))


def choice_bits(taken: Tensor, experts: int, tokens: int) -> UInt8:
    """Convert the experts of sampled tokens to bit sets, ``[tokens, B]`` uint8.

    ``taken`` is from :meth:`TokenSample.take`, on any device, for which this waits;
    missing tokens are empty.

    Raises
    ------
    ValueError
        If a mask has another number of experts.
    """
    values = taken.cpu().numpy()
    if values.dtype == np.bool_:
        mask = values
        if mask.shape[1] != experts:
            raise ValueError(
                f"a mask of experts has {experts} columns, but has {mask.shape[1]}"
            )
    else:
        mask = np.zeros((len(values), experts), bool)
        token, _ = known = np.nonzero((values >= 0) & (values < experts))
        mask[token, values[known]] = True
    bits = np.zeros((tokens, packed_bytes(experts)), np.uint8)
    bits[: len(mask)] = pack(mask)
    return bits
