"""Run one policy over a series: it sees copies of the past, its plans serve the truth.

Two defenses keep the future out.  The arrays of a view are new copies of what is known,
without a base array behind them.  And :func:`foresight` runs the policy on two series
that are equal up to what is known at a decision point: the plans must be equal.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from moetraffic.arrays import Float64, Int64

from .catalog import Maker
from .exchange_series import (
    ExchangeSeries,
    LayerKey,
    MatrixWindow,
    forecast_points,
    number_of,
)
from .family import FAMILIES, network_of
from .policy import ObservingPolicy, View
from .service.layer import EXCHANGE, Scope, serve_layer, transposed
from .service.optical import Service, served_together

MEMORY = 64
"""Iterations of the past in a view."""

MEMORY_BYTES = 64 << 20
"""Memory of the past in a view; of large matrices it has fewer than MEMORY, 2 or more.
"""

AUDITED = 3
"""Consecutive decision points at which :func:`foresight` runs a policy."""


class PolicyFailure(Exception):
    """A policy that raised or made an impossible plan: one sentence."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PolicyRun:
    """How the plans of one policy were served."""

    name: str
    plans: Mapping[LayerKey, Any]  # the last of each layer
    services: tuple[tuple[Service, ...], ...]  # [n][layer], all groups of it together
    planning_s: Float64  # CPU seconds of each plan


def run_policy(
    maker: Maker,
    series: ExchangeSeries,
    forecasts: Mapping[LayerKey, Sequence[Float64] | Float64],
    points: Int64,
    network: Any,
    *,
    age: int = 1,
    hold: int = 1,
    scope: Scope = EXCHANGE,
) -> PolicyRun:
    """Let a policy plan each exchange of some iterations, and serve its plans.

    Parameters
    ----------
    maker
        Makes the policy, without state.
    series
        What is served.
    forecasts
        ``[n, ...]`` of each layer at the points, from what is known there.
    points
        ``[n]`` consecutive indices of iterations.
    network
        What the family of the policy is served by.
    age
        Iterations from the newest known one to the planned one.
    hold
        Iterations that a plan serves; its age grows meanwhile.
    scope
        What the completion times of plans between ranks are of; a cluster has its own.

    Raises
    ------
    PolicyFailure
        If the policy fails; the sentence has its name.
    """
    with _failures(getattr(maker, "__name__", str(maker)), ""):
        policy = maker()
    family = FAMILIES[policy.family]
    plans: dict[LayerKey, Any] = {}
    waiting: list[tuple[int, View, Service]] = []
    services, planning = [], []
    for number, point in enumerate(points.tolist()):
        if isinstance(policy, ObservingPolicy):
            for of, view, done in [w for w in waiting if w[0] <= point - age]:
                with _failures(policy.name, f" in iteration {of}"):
                    policy.observe(view, done)
            waiting = [w for w in waiting if w[0] > point - age]
        row: dict[int, list[Service]] = {}
        for layer, truth in series.layers.items():
            last = plans.get(layer)
            on = network_of(network, series.ranks.get(layer))
            if number % hold == 0:
                view = _view(
                    *(series, layer, point, forecasts[layer][number]),
                    network=on,
                    age=age,
                    hold=hold,
                )
                where = f" for layer {layer}, iteration {series.iterations[point]}"
                began = time.thread_time()
                with _failures(policy.name, where):
                    plans[layer] = policy.plan(view)
                planning.append(time.thread_time() - began)
                with _failures(policy.name, where):
                    why = family.violations(plans[layer], view.forecast, on)
                    if family.unit == "bytes" and scope.name != "exchange" and not why:
                        transposed(plans[layer], on)
                if why:
                    raise PolicyFailure(
                        f"{policy.name} made an impossible plan{where}: {why}"
                    )
            served = serve_layer(
                *(family.serve, truth[point], plans[layer], on),
                last=last,
                scope=scope if family.unit == "bytes" else EXCHANGE,
                row_bytes=series.row_bytes,
            )
            _conserved(policy.name, served)
            row.setdefault(number_of(layer), []).append(served)
            if isinstance(policy, ObservingPolicy):
                waiting.append((point, view, served))
        services.append(tuple(map(served_together, row.values())))
    return PolicyRun(
        name=policy.name,
        plans=plans,
        services=tuple(services),
        planning_s=np.array(planning),
    )


def foresight(
    maker: Maker,
    series: ExchangeSeries,
    network: Any,
    *,
    points: Int64,
    age: int = 1,
    seed: int = 0,
) -> str:
    """Test whether plans depend on traffic that is not known yet; empty if not.

    The policy plans a few consecutive points anew, three times: twice with the same
    series, and once with one whose later exchanges have their ranks in another order.

    ``seed``: Of the points, the layer and the order.

    Otherwise it is a sentence with the policy's name.

    Raises
    ------
    PolicyFailure
        As :func:`run_policy` does.
    """
    rng = np.random.default_rng(seed)
    begin = int(rng.integers(0, max(1, len(points) - AUDITED + 1)))
    some = points[begin : begin + AUDITED]
    layers = list(series.layers)
    audited = int(rng.integers(0, len(layers)))
    newest = int(some[-1]) - age
    altered = {}
    for number, (layer, truth) in enumerate(series.layers.items()):
        # layers before the audited one are known in the same iteration, for age 1
        begin = newest + 1 + (age == 1 and number < audited)
        # of the altered series, only what policies and forecasts see is read
        altered[layer] = MatrixWindow(partial(_altered, truth, begin), truth.shape)
    forecasts = {
        layer: forecast_points(truth, some, age=age, forecaster="persistence")
        for layer, truth in series.layers.items()
    }
    runs = [
        run_policy(maker, used, forecasts, some, network, age=age)
        for used in (series, series, replace(series, layers=altered))
    ]
    name = runs[0].name
    first, again, other = (run.plans[layers[audited]] for run in runs)
    if not same_plan(first, again):
        return (
            f"{name} makes other plans when it is run again on the same traffic: give "
            "its randomness a fixed seed"
        )
    if not same_plan(first, other):
        return (
            f"{name} uses traffic that is not known when it plans: its plan for layer "
            f"{layers[audited]} changes with later exchanges"
        )
    return ""


def _altered(truth: Float64 | MatrixWindow, begin: int, at: int) -> Float64:
    """Return a matrix with another order of ranks and other values from `begin` on."""
    one = truth[at]
    return one if at < begin else np.roll(one, 1, axis=(0, 1)) * 2 + 1


def same_plan(one: Any, other: Any) -> bool:
    """Compare two plans field by field, arrays by their values."""
    if type(one) is not type(other):
        return False
    if is_dataclass(one):
        return all(
            same_plan(getattr(one, f.name), getattr(other, f.name)) for f in fields(one)
        )
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other)
    if isinstance(one, csr_array):
        return one.shape == other.shape and not (one != other).nnz
    return bool(one == other)


def _view(
    series: ExchangeSeries,
    layer: LayerKey,
    point: int,
    forecast: Float64,
    *,
    network: Any,
    age: int,
    hold: int,
) -> View:
    """Copy what is known when the plan for an exchange is made."""
    known = point - age + 1
    order = list(series.layers)
    before = order[: order.index(layer)] if age == 1 else []
    before = [n for n in before if number_of(n) < number_of(layer)]
    truth = series.layers[layer]
    most = min(MEMORY, max(2, MEMORY_BYTES // (8 * truth.shape[1] * truth.shape[2])))
    alike = [
        series.layers[n][point]
        for n in before
        if series.layers[n].shape[1:] == truth.shape[1:]
    ]
    return View(
        iteration=int(series.iterations[point]),
        layer=layer,
        phase=series.phase,
        age=age,
        hold=hold,
        past=np.array(truth[max(0, known - most) : known]),
        earlier=np.array(alike).reshape(len(alike), *truth.shape[1:]),
        forecast=np.array(forecast),
        network=network,
    )


def _conserved(name: str, served: Service) -> None:
    total = served.planned_bytes + served.rest_bytes
    if not np.isclose(total, served.demand_bytes, rtol=1e-9, atol=1e-6):
        raise AssertionError(
            f"{total} bytes were served of {served.demand_bytes} ({name})"
        )


@contextmanager
def _failures(name: str, where: str) -> Iterator[None]:
    """Turn any exception of a policy into one sentence with its name."""
    try:
        yield
    except PolicyFailure as failure:
        raise PolicyFailure(f"{name} {failure}{where}") from None
    except Exception as error:
        what = str(error).strip().splitlines()
        raise PolicyFailure(
            f"{name} raised {type(error).__name__}{where}"
            + (f": {what[0][:200]}" if what else "")
        ) from error
