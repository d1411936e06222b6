from __future__ import annotations

import torch

from moetraffic.models import Corpus
from moetraffic.models.corpus import batch, masked
from moetraffic.models.gpt import IGNORED
from moetraffic.patterns import ModelShape

TEXT = Corpus(text=torch.arange(200, dtype=torch.uint8), source="numbers")
KEY = {"sequences": 3, "seed": 1, "iteration": 2, "micro_batch": 0, "rank": 5}
TWO = ModelShape(encoder_layers=2, positions="relative", sequence=10, target_sequence=4)


def test_a_decoder_predicts_the_next_token() -> None:
    tokens, targets = batch(TEXT, ModelShape(sequence=12), **KEY)
    assert tokens.shape == targets.shape == (3, 12)
    assert torch.equal(tokens + 1, targets)


def test_two_stacks_read_a_passage_and_write_what_follows() -> None:
    tokens, targets = batch(TEXT, TWO, **KEY)
    assert tokens.shape == (3, 14)
    assert targets.shape == (3, 4)
    read, written = tokens.split([10, 4], 1)
    assert torch.equal(read[:, -1:] + 1, written[:, :1])
    assert torch.equal(written + 1, targets)


def test_an_encoder_fills_in_what_is_masked() -> None:
    shape = ModelShape(layers=2, encoder_layers=2, sequence=100, vocabulary=257)
    first = batch(TEXT, shape, **KEY)
    again = batch(TEXT, shape, **KEY)
    other = batch(TEXT, shape, **{**KEY, "rank": 6})
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[1], other[1])
    tokens, targets = first
    assert ((targets != IGNORED).sum(1) == 15).all()
    plain = batch(TEXT, ModelShape(sequence=100), **KEY)[0]
    asked = targets != IGNORED
    assert torch.equal(targets[asked], plain[asked])
    assert torch.equal(tokens[~asked], plain[~asked])


def test_shares_of_masked_wrong_and_right_tokens() -> None:
    plain = torch.arange(400).remainder(256).expand(200, -1)
    tokens, targets = masked(plain, 257, torch.Generator().manual_seed(0))
    asked = targets != IGNORED
    assert asked.float().mean() == 0.15
    hidden = (tokens[asked] == 256).float().mean()
    right = (tokens[asked] == targets[asked]).float().mean()
    assert abs(hidden - 0.8) < 0.02
    assert abs(right - 0.1) < 0.02  # and some of the wrong ones by chance


def test_a_short_sequence_has_a_masked_token() -> None:
    _, targets = masked(torch.zeros(4, 2).long(), 257, torch.Generator())
    assert ((targets != IGNORED).sum(1) == 1).all()
