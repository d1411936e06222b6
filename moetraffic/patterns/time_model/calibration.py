"""Fit what a system is to measured iteration times.

Without overlap an iteration's time is linear in 1/u, the overheads, 1/(optimizer's
speed) and each kind's 1/C, so they are fitted together, by least squares of relative
errors with none of them negative.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from moetraffic.arrays import Float64
from moetraffic.errors import LayoutError
from moetraffic.patterns.layouts.configuration import Configuration
from moetraffic.patterns.rules import choose
from moetraffic.patterns.values import Values

from .conventions import SC21, Conventions
from .estimation import estimate
from .system import System
from .traffic import KINDS

SPEEDS = ("utilization", "memory_bytes_s")
OVERHEADS = ("layer_overhead_s", "iteration_overhead_s", "latency_s")
UNKNOWNS = (*SPEEDS, *OVERHEADS, *KINDS)
"""What can be fitted; a kind of traffic stands for its effective bandwidth."""


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """A system that was fitted, and how well."""

    system: System
    fitted: dict[str, float]  # by unknown: u, s, bytes/s; inf: it takes no time
    measured: Float64  # [n] s
    predicted: Float64  # [n] s
    rank: int  # of the fit's matrix: below len(fitted), some cannot be told apart

    @property
    def residuals(self) -> Float64:
        """``[n]`` relative: predicted over measured, less 1."""
        return self.predicted / self.measured - 1


def calibrate(
    config: Configuration,
    measured: npt.ArrayLike,
    system: System,
    unknowns: Sequence[str] = ("utilization",),
    *,
    conventions: Conventions = SC21,
) -> Calibration:
    """Fit some numbers of a system to measured iteration times.

    Parameters
    ----------
    config
        The configurations, ``n`` elements in all.
    measured
        ``[n]`` s, an iteration's time of each.
    system
        What is known; unknowns are replaced in it.
    unknowns
        Of :data:`UNKNOWNS`.
    conventions
        How the terms are counted.

    Returns
    -------
    Calibration
        The best in the sense of ``sum (predicted/measured - 1)^2``.

    Raises
    ------
    LayoutError
        If there are fewer measurements than unknowns, one is not known, or some
        communication overlaps (then nothing is linear).
    """
    times = np.asarray(measured, np.float64).ravel()
    for name in unknowns:
        choose("what is fitted", name, UNKNOWNS)
    if any(np.any(np.asarray(share) > 0) for share in system.overlap.values()):
        raise LayoutError(
            "a calibration is linear where nothing overlaps, but the system's overlap "
            f"is {dict(system.overlap)}: leave it out and give what is exposed"
        )
    if times.size < len(unknowns) or times.size != int(np.prod(config.shape)):
        raise LayoutError(
            "a calibration has a measured time for each configuration and as many as "
            f"unknowns, but {times.size} times, {int(np.prod(config.shape))} "
            f"configurations and {len(unknowns)} unknowns: measure more, or fit fewer"
        )
    if not (np.isfinite(times) & (times > 0)).all():
        raise LayoutError(
            f"measured times are above 0 s, but one is {times.min():g}: leave it out"
        )
    from scipy.optimize import nnls  # a second: not every verb needs it

    def total(**values: float) -> Float64:
        changed = _with(system, values)
        return estimate(config, changed, conventions=conventions).iteration.ravel()

    silent = dict.fromkeys(unknowns, np.inf)
    known = total(**silent)
    columns = [total(**{**silent, name: 1.0}) - known for name in unknowns]
    terms = np.stack(columns, axis=1)  # [n, k], of each unknown at 1
    # relative, and columns of one size, as speeds and times are not
    matrix = terms / times[:, None]
    scale = np.linalg.norm(matrix, axis=0)
    scale[scale == 0] = 1.0
    coefficients = nnls(matrix / scale, 1 - known / times)[0] / scale
    fitted = {
        name: one if name in OVERHEADS else 1 / one if one > 0 else np.inf
        for name, one in zip(unknowns, coefficients.tolist(), strict=True)
    }
    return Calibration(
        system=_with(system, fitted),
        fitted=fitted,
        measured=times,
        predicted=known + terms @ coefficients,
        rank=int(np.linalg.matrix_rank(matrix / scale)),
    )


def _with(system: System, values: Mapping[str, float]) -> System:
    """The system with these numbers; inf is nothing, of an overhead too."""
    new: dict[str, Values] = {}
    told = system.bandwidth
    every = dict(told) if isinstance(told, Mapping) else {"other": told}
    for name, value in values.items():
        if name in KINDS:
            every[name] = value
        else:
            new[name] = 0.0 if name in OVERHEADS and np.isinf(value) else value
    return replace(system, bandwidth=every, **new)
