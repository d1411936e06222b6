"""Processes of routing whose co-activation is known.

Each takes a generator of random numbers and the number of iterations, draws its
setting, and returns the experts of each iteration's sampled tokens, masks ``[T, E]``,
and whether a pair of experts is coupled: chosen together at least 1.3 times as often as
by independent choices with the same loads.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from moetraffic.arrays import Bool, Float64

Process = Callable[[np.random.Generator, int], tuple[list[Bool], bool]]


def top(scores: Float64, k: int) -> Bool:
    """Mask of the k largest scores of each token, ``[T, E]``."""
    mask = np.zeros(scores.shape, bool)
    np.put_along_axis(mask, np.argpartition(-scores, k - 1, axis=1)[:, :k], True, 1)
    return mask


def independent(
    rng: np.random.Generator,
    tokens: int,
    logits: Float64,
    k: int,
    noise: str = "gumbel",
) -> Bool:
    """Choices by independent scores: logits and noise, the k largest of each token.

    With Gumbel noise they are k draws without replacement (Plackett-Luce).
    """
    shape = tokens, logits.shape[-1]
    return top(logits + getattr(rng, noise)(size=shape), k)


def _setting(rng: np.random.Generator) -> tuple[int, int, int]:
    """Draw experts, experts per token, and sampled tokens of an iteration."""
    experts = int(rng.choice([8, 16, 32, 64]))
    k = int(rng.choice([k for k in (2, 4, 8) if k <= experts // 2]))
    return experts, k, int(rng.choice([64, 128, 256]))


def _scored(
    rng: np.random.Generator, steps: int, noise: str, walk: float
) -> list[Bool]:
    experts, k, tokens = _setting(rng)
    logits = rng.normal(0, rng.uniform(0, 1.5), experts)
    masks = []
    for _ in range(steps):
        logits = logits + walk * rng.normal(size=experts)
        masks.append(independent(rng, tokens, logits, k, noise))
    return masks


def without_replacement(
    rng: np.random.Generator, steps: int
) -> tuple[list[Bool], bool]:
    """k draws without replacement with skewed, constant probabilities."""
    return _scored(rng, steps, "gumbel", 0.0), False


def normal_scores(rng: np.random.Generator, steps: int) -> tuple[list[Bool], bool]:
    """The k largest of independent normal scores with different means."""
    return _scored(rng, steps, "normal", 0.0), False


def logistic_scores(rng: np.random.Generator, steps: int) -> tuple[list[Bool], bool]:
    """The k largest of independent logistic scores with different means."""
    return _scored(rng, steps, "logistic", 0.0), False


def moving_loads(rng: np.random.Generator, steps: int) -> tuple[list[Bool], bool]:
    """Independent choices whose logits are a random walk of .1 an iteration."""
    return _scored(rng, steps, "gumbel", 0.1), False


def sequences(rng: np.random.Generator, steps: int) -> tuple[list[Bool], bool]:
    """Independent choices; each sequence of 16 tokens has other preferences.

    These are drawn for each expert by itself: tokens are dependent, experts are not.
    """
    experts, k, tokens = _setting(rng)
    level = rng.normal(0, rng.uniform(0, 1), experts)
    own = rng.uniform(0.2, 0.6)
    masks = []
    for _ in range(steps):
        logits = level + own * rng.normal(size=(tokens // 16, experts))
        masks.append(independent(rng, tokens, np.repeat(logits, 16, axis=0), k))
    return masks, False


def partners(rng: np.random.Generator, steps: int) -> tuple[list[Bool], bool]:
    """Two experts of mean load share the noise of their scores in part."""
    experts, k, tokens = _setting(rng)
    logits = rng.normal(0, rng.uniform(0, 1), experts)
    logits[:2] = np.sort(logits)[experts // 2 :][:2]
    size = rng.uniform(1.5, 3)
    masks = []
    for _ in range(steps):
        scores = logits + rng.gumbel(size=(tokens, experts))
        scores[:, :2] += size * rng.normal(size=(tokens, 1))
        masks.append(top(scores, k))
    return masks, True


def topics(rng: np.random.Generator, steps: int) -> tuple[list[Bool], bool]:
    """Each token has one of four topics, with preferences of its own for experts."""
    experts, k, tokens = _setting(rng)
    logits = rng.normal(0, rng.uniform(1, 1.5), (4, experts))
    masks = [
        independent(rng, tokens, logits[rng.integers(4, size=tokens)], k)
        for _ in range(steps)
    ]
    return masks, True


def group_limited(rng: np.random.Generator, steps: int) -> tuple[list[Bool], bool]:
    """All experts of a token are in one half of the experts, by the sum of scores."""
    experts, k, tokens = _setting(rng)
    logits = rng.normal(0, rng.uniform(0, 0.5), experts)
    masks = []
    for _ in range(steps):
        scores = logits + rng.gumbel(size=(tokens, experts))
        halves = scores.reshape(tokens, 2, -1)
        best = np.sort(halves, axis=2)[:, :, -2:].sum(axis=2)
        halves[best < best.max(axis=1, keepdims=True)] -= 100
        masks.append(top(halves.reshape(tokens, experts), k))
    return masks, True


PROCESSES: dict[str, Process] = {
    "without replacement": without_replacement,
    "normal scores": normal_scores,
    "logistic scores": logistic_scores,
    "moving loads": moving_loads,
    "sequences": sequences,
    "partners": partners,
    "topics": topics,
    "group-limited": group_limited,
}
