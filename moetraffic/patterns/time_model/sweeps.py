"""Scaling: the same model on more GPUs, with one batch, one a rank, or larger ones."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from moetraffic.arrays import Float64
from moetraffic.errors import LayoutError
from moetraffic.patterns.layouts.configuration import Configuration
from moetraffic.patterns.layouts.violations import violations
from moetraffic.patterns.rules import choose, refuse
from moetraffic.patterns.values import numbers

from .conventions import SC21, Conventions
from .estimation import Estimate, estimate
from .system import System

SCALINGS = ("strong", "weak", "large-batch")


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """A configuration at several sizes, the first of which others are compared with."""

    scaling: str  # one of SCALINGS
    estimate: Estimate  # arrays [n]

    @property
    def gpus(self) -> Float64:
        """``[n]``."""
        config = self.estimate.config
        return np.broadcast_to(config.world, config.shape)

    @property
    def speedup(self) -> Float64:
        """``[n]`` throughput over the first one's."""
        return np.asarray(self.estimate.tokens_s / self.estimate.tokens_s[0])

    @property
    def efficiency(self) -> Float64:
        """``[n]`` throughput a GPU over the first one's."""
        return np.asarray(self.speedup * self.gpus[0] / self.gpus)


def sweep(
    config: Configuration,
    system: System,
    scaling: str,
    sizes: npt.ArrayLike,
    *,
    conventions: Conventions = SC21,
) -> Sweep:
    """Scale one configuration.

    Parameters
    ----------
    config
        Of numbers, no arrays.
    system, conventions
        As of :func:`estimate`.
    scaling
        ``strong``: the global batch stays and ``sizes`` are dp.  ``weak``: the same,
        with as many sequences a data-parallel rank as before.  ``large-batch``: ranks
        stay and ``sizes`` are global batches.
    sizes
        ``[n]`` ascending.

    Returns
    -------
    Sweep
        Sizes that cannot be (a batch that does not divide) are NaN.

    Raises
    ------
    LayoutError
        If the scaling is none of :data:`SCALINGS`, the configuration an array, or no
        size can be.
    """
    choose("a scaling", scaling, SCALINGS)
    if config.shape:
        raise LayoutError(
            "a sweep scales one configuration, but this one is an array of shape "
            f"{config.shape}: give numbers"
        )
    steps = numbers("sizes", sizes)
    if scaling == "large-batch":
        scaled = replace(config, global_batch=steps)
    else:
        batch = config.sequences
        if scaling == "weak":
            batch = batch / config.dp * steps
        # experts stay where they are: their groups get no larger
        scaled = replace(config, dp=steps, global_batch=batch)
    told = estimate(scaled, system, conventions=conventions, strict=False)
    if not told.sound.any():
        refuse(violations(scaled))
    return Sweep(scaling=scaling, estimate=told)
