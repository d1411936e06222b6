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
from scipy.optimize import nnls

from moetraffic.errors import LayoutError

from .configuration import Configuration
from .conventions import SC21, Conventions
from .estimation import estimate
from .system import System
from .traffic import KINDS
from .values import Float64, Values

SPEEDS = ("utilisation", "memory_bytes_s")
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
    unknowns: Sequence[str] = ("utilisation",),
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
    unknown = [name for name in unknowns if name not in UNKNOWNS]
    if unknown:
        raise LayoutError(
            f"what is fitted is one of {', '.join(UNKNOWNS)}, not {unknown[0]!r}: "
            "choose among them"
        )
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
    # Step 1: what the known part takes, and each unknown by itself at 1.
    silent = _with(system, dict.fromkeys(unknowns, np.inf))
    known = _total(config, silent, conventions)
    columns = [
        _total(config, _with(silent, {name: 1.0}), conventions) - known
        for name in unknowns
    ]
    matrix = np.stack(columns, axis=1) / times[:, None]
    # Step 2: relative least squares; columns of one size, as speeds and times are not.
    scale = np.linalg.norm(matrix, axis=0)
    scale[scale == 0] = 1.0
    found, _norm = nnls(matrix / scale, 1 - known / times)
    found = found / scale
    values = {
        name: _value(name, float(one))
        for name, one in zip(unknowns, found, strict=True)
    }
    fitted = _with(system, values)
    return Calibration(
        system=fitted,
        fitted=values,
        measured=times,
        predicted=known + matrix @ found * times,
        rank=int(np.linalg.matrix_rank(matrix / scale)),
    )


def _value(name: str, coefficient: float) -> float:
    if name in OVERHEADS:
        return coefficient
    return 1 / coefficient if coefficient > 0 else float("inf")


def _with(system: System, values: Mapping[str, float]) -> System:
    """The system with these numbers; an overhead of inf is one of 0."""
    new: dict[str, Values] = {}
    told = system.bandwidth
    every = dict(told) if isinstance(told, Mapping) else {"other": told}
    for name, value in values.items():
        if name in KINDS:
            every[name] = value
        else:
            new[name] = 0.0 if name in OVERHEADS and np.isinf(value) else value
    return replace(system, bandwidth=every, **new)


def _total(config: Configuration, system: System, conventions: Conventions) -> Float64:
    return estimate(config, system, conventions=conventions).iteration.ravel()


@dataclass(frozen=True, kw_only=True)
class HalfSplits:
    """Errors of configurations that a calibration has not seen."""

    errors: Float64  # [s, n - n//2] relative, of each split's other half
    median: float  # of their absolute values
    worst: float
    splits: int


def half_splits(
    config: Configuration,
    measured: npt.ArrayLike,
    system: System,
    unknowns: Sequence[str],
    *,
    conventions: Conventions = SC21,
) -> HalfSplits:
    """Calibrate on every half of the measurements and predict the other one.

    Parameters
    ----------
    config
        Fields are ``[n]`` or numbers.
    measured
        ``[n]`` s.
    system, unknowns, conventions
        As of :func:`calibrate`.
    """
    from itertools import combinations

    times = np.asarray(measured, np.float64)
    number = times.size
    errors = []
    for half in combinations(range(number), number // 2):
        seen = np.array(half)
        others = np.setdiff1d(np.arange(number), seen)
        fit = calibrate(
            taken(config, seen),
            times[seen],
            system,
            unknowns,
            conventions=conventions,
        )
        told = _total(taken(config, others), fit.system, conventions)
        errors.append(told / times[others] - 1)
    found = np.stack(errors)
    return HalfSplits(
        errors=found,
        median=float(np.median(np.abs(found))),
        worst=float(np.abs(found).max()),
        splits=len(errors),
    )


def taken(config: Configuration, elements: npt.NDArray[np.int64]) -> Configuration:
    """Some elements of a configuration of one dimension."""
    from dataclasses import fields

    def part(value: Values) -> Values:
        return value[elements] if value.ndim else value

    model = replace(
        config.model,
        **{f.name: part(getattr(config.model, f.name)) for f in fields(config.model)},
    )
    new = {
        f.name: part(getattr(config, f.name))
        for f in fields(config)
        if f.name != "model"
    }
    return replace(config, model=model, **new)
