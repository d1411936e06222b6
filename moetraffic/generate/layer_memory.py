"""Fit the autoregressive processes of one layer in one window."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .memories import MOST_MEMORIES, Memories, fit_memories

Float64 = npt.NDArray[np.float64]

SLOW = 0.3
"""A single memory above this is the slowest of those that there may be."""

SHORT = 48
"""Iterations below which one memory is all that can be told."""

TRUST = 3.0
"""Independent swings at which an expert's own size counts for half."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerMemory:
    """Memories in fixed places, the fastest first; places without one have size 0."""

    phi: Float64  # [J]
    sd: Float64  # [J]
    scale: Float64  # [E] mean square 1, by load
    memories: Memories
    slots: list[int]  # the place of each memory


def fit_layer(
    own: Float64, noise: Float64, weight: Float64, *, slowest: float = 0.0
) -> LayerMemory:
    """Fit one layer's own deviations.

    Parameters
    ----------
    own
        ``[n, E]`` deviations from the trend, as seen.
    noise
        ``[n, E]`` variance of their error.
    weight
        ``[E]`` share of each expert in what matters, with the sum 1.
    slowest
        Iterations of the longest time scale; 0: as long as may be.
    """
    x = own - own.mean(axis=0)
    count, experts = x.shape
    total = np.maximum((x**2).mean(axis=0), 1e-12)
    by_chance = noise.mean(axis=0)
    state = np.maximum(total - by_chance, 0.02 * total)
    # of the series as they are fitted, each with variance 1
    share = float(np.clip((by_chance / total).clip(0, 0.98) @ weight, 0.0, 0.98))
    mean = float((state * weight).sum())
    worth = min(max(1.0, 1 / float((weight**2).sum()) - 1), experts - 1.0)
    memories = fit_memories(
        x / np.sqrt(total),
        weight=weight,
        noise_share=share,
        worth=worth,
        slowest=slowest,
        most=1 if count < SHORT else 2 if slowest else MOST_MEMORIES,
    )
    found = len(memories.phi)
    slots = list(range(MOST_MEMORIES - found, MOST_MEMORIES))
    if found == 1 and memories.phi[0] < SLOW:
        slots = [0]
    phi, sd = np.zeros(MOST_MEMORIES), np.zeros(MOST_MEMORIES)
    phi[slots] = memories.phi
    sd[slots] = np.sqrt(mean * memories.share / memories.share.sum())
    # an expert's own size is known as well as its few independent swings allow
    swings = count * (1 - float(np.abs(memories.phi).max())) / 2 + 1
    trust = swings / (swings + TRUST)
    scale = (state / mean) ** (trust / 2)
    scale /= np.sqrt(scale**2 @ weight)
    return LayerMemory(phi=phi, sd=sd, scale=scale, memories=memories, slots=slots)
