"""Byte-level text corpus, and the batches of each training objective sampled from it.

A decoder predicts the token that follows.  An encoder and a decoder read a passage and
write what follows it: the prefix language model of T5 (Raffel et al., arXiv 1910.10683,
section 3.2.1), whose lengths are those of its span corruption.  An encoder alone fills
in what was masked (Devlin et al., arXiv 1810.04805, section 3.1).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from moetraffic.patterns import ModelShape, Training
from moetraffic.workload import text as texts

from .gpt import IGNORED
from .random_streams import Stream, generator

MASKED = 0.15
"""Share of the tokens that an encoder must fill in."""
HIDDEN, WRONG = 0.8, 0.1
"""Shares of these that are replaced by the mask, and by any token; others stay."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Corpus:
    """Training text as a byte tensor, and a description of its source."""

    text: Tensor  # [N] uint8
    source: str  # "a file", "a folder" ... in words


def text(shape: ModelShape, plan: Training) -> Corpus:
    """Load the corpus of a training plan, validated against the model shape."""
    found = texts.read(
        plan.corpus,
        sequence=shape.window,
        vocabulary=shape.vocabulary - int(shape.masked),
    )
    return Corpus(
        text=torch.frombuffer(found.data, dtype=torch.uint8), source=found.source
    )


def batch(
    corpus: Corpus,
    shape: ModelShape,
    *,
    sequences: int,
    seed: int,
    iteration: int,
    micro_batch: int,
    rank: int,
) -> tuple[Tensor, Tensor]:
    """Sample B passages at random positions of the text, and what is to be predicted.

    The last four arguments are the key of the draw; ``rank`` is the data-parallel rank.
    ``shape`` decides the objective and the lengths S and S'.  Tokens and targets are
    int64, ``[B, S]`` each; with two stacks ``[B, S + S']`` and ``[B, S']``.  A target
    is the token that follows, ``IGNORED`` where it counts for nothing.
    """
    draws = generator(Stream.BATCH, seed, iteration, micro_batch, rank)
    last = len(corpus.text) - shape.window
    begins = torch.randint(last, (sequences,), generator=draws)
    places = begins.unsqueeze(1) + torch.arange(shape.window + 1)
    passage = corpus.text[places].long()  # [B, window + 1]
    tokens, targets = passage[:, :-1], passage[:, 1:]
    if shape.two_stacks:
        return tokens, targets[:, shape.sequence :]
    if shape.masked:
        draws = generator(Stream.MASK, seed, iteration, micro_batch, rank)
        return masked(tokens, shape.vocabulary, draws)
    return tokens, targets


def masked(
    tokens: Tensor, vocabulary: int, draws: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Mask an equal number of tokens in each sequence, at least one.

    ``tokens`` are ``[B, S]`` int64 below ``vocabulary - 1``, which is the mask.
    Returns tokens and targets ``[B, S]`` int64; a target is ``IGNORED`` where nothing
    was chosen.
    """
    chance = torch.rand(tokens.shape, generator=draws)
    count = max(1, round(MASKED * tokens.shape[1]))
    place = chance.topk(count, dim=1).indices  # [B, count]
    right = tokens.gather(1, place)
    kind = torch.rand(place.shape, generator=draws)
    wrong = torch.randint(vocabulary - 1, place.shape, generator=draws)
    shown = torch.where(kind < HIDDEN, vocabulary - 1, right)
    shown = torch.where((kind >= HIDDEN) & (kind < HIDDEN + WRONG), wrong, shown)
    targets = torch.full_like(tokens, IGNORED).scatter(1, place, right)
    return tokens.scatter(1, place, shown), targets
