"""Byte-level text corpus from which training batches are sampled."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from moetraffic.patterns import text

from .random_streams import Stream, generator


@dataclass(frozen=True, kw_only=True, eq=False)
class Corpus:
    """Training text as a byte tensor, and a description of its source."""

    text: Tensor  # [N] uint8
    source: str  # "a file", "a folder" ... in words

    def batch(
        self,
        *,
        sequences: int,
        length: int,
        seed: int,
        iteration: int,
        micro_batch: int,
        rank: int,
    ) -> tuple[Tensor, Tensor]:
        """Sample sequences at random positions, determined by the last four arguments.

        Parameters
        ----------
        sequences, length
            B sequences of S tokens; the text must be longer than S.
        seed, iteration, micro_batch, rank
            The key of the draw; ``rank`` is the data-parallel rank.

        Returns
        -------
        tokens, targets
            ``[B, S]`` int64 each; a target is the token that follows.
        """
        draws = generator(Stream.BATCH, seed, iteration, micro_batch, rank)
        last = len(self.text) - length
        begins = torch.randint(last, (sequences,), generator=draws)
        places = begins.unsqueeze(1) + torch.arange(length + 1)
        window = self.text[places].long()  # [B, S + 1]
        return window[:, :-1], window[:, 1:]


def load(where: str = "", *, sequence: int = 1, vocabulary: int = 256) -> Corpus:
    """Read a corpus; parameters and errors are :func:`moetraffic.patterns.text.read`'s.

    Raises
    ------
    LayoutError
        If the text cannot be used.
    """
    found = text.read(where, sequence=sequence, vocabulary=vocabulary)
    return Corpus(
        text=torch.frombuffer(found.data, dtype=torch.uint8), source=found.source
    )
