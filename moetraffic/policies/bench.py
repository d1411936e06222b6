"""Run policies on one trace: plan from copies of the past, serve the truth.

A view has new arrays with copies of what is known when a plan is made.  Plans serve
the true traffic of their iterations; bytes that they do not carry are never dropped.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from moetraffic.analysis.forecast import ends, gain
from moetraffic.analysis.intervals import UNKNOWN, Interval, ratio
from moetraffic.arrays import Float64, Int64
from moetraffic.errors import AnalysisError
from moetraffic.trace import Trace
from moetraffic.trace.what_if.loads import over_ranks

from .catalog import Maker, first_line
from .cluster import Cluster
from .networks import OPTICAL, networks_of
from .optical import OpticalSwitch
from .packets import PacketNetwork
from .plan_file import FixedPlans
from .policy import FAMILIES, UNITS, View
from .series import (
    MOST_SERVED,
    ExchangeSeries,
    LayerKey,
    byte_series,
    forecast_points,
    number_of,
    token_series,
)
from .service import (
    EXCHANGE,
    Scope,
    Service,
    added,
    bound_layer,
    crossing,
    line_bytes,
    serve_layer,
)
from .transmission import with_distinct_tokens

MEMORY = 64
"""Iterations of the past in a view."""

MEMORY_BYTES = 64 << 20
"""Memory of the past in a view; of large matrices it has fewer than MEMORY, 2 or more.
"""

NONE, SERVED = "none", "what it serves"
"""Forecasters of policies that use none, and of plans made from what they serve."""

Row = dict[str, Any]
"""Score of a policy with a forecaster, on a network, at an age."""


class PolicyFailure(Exception):
    """A policy that raised or made an impossible plan: one sentence."""


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """What all policies of an evaluation have in common."""

    forecasters: tuple[str, ...]
    ages: tuple[int, ...]  # iterations from the newest known one to the planned one
    hold: int = 1  # iterations that a plan serves
    scope: Scope = EXCHANGE
    phase: str = "dispatch"
    layers: tuple[int, ...] | None = None
    iterations: range | None = None
    most: int = MOST_SERVED
    seed: int = 0
    ep: int | None = None  # ranks of a load without source ranks
    networks: Mapping[str, Any] | None = None  # None: those of the options
    options: Mapping[str, Any] = field(default_factory=dict)  # of networks_of


class Bench:
    """The series of one trace, and the forecasts and bounds that policies share."""

    def __init__(self, trace: Trace | ExchangeSeries, conditions: Conditions) -> None:
        if isinstance(trace, Trace):
            trace = over_ranks(trace, conditions.ep, needed=True)
        self.trace, self.conditions = trace, conditions
        self.name = str(trace.name)
        networks = conditions.networks
        if networks is None and isinstance(trace, Trace):
            networks = networks_of(trace.meta.world, **conditions.options)
        self.networks = networks or {
            "optical": OPTICAL,
            "cluster": Cluster(rate_bytes_s=OPTICAL.rate_bytes_s),
        }
        self.used: dict[str, Any] = {}  # networks that served policies
        self._kept: dict[Any, Any] = {}

    def series(self, unit: str) -> ExchangeSeries:
        """Read the series of a unit, "bytes" or "tokens"."""
        if isinstance(self.trace, ExchangeSeries):
            return self.trace
        if unit not in self._kept:
            read = {"bytes": byte_series, "tokens": token_series}[unit]
            self._kept[unit] = read(
                self.trace,
                phase=self.conditions.phase,
                layers=self.conditions.layers,
                iterations=self.conditions.iterations,
            )
        return self._kept[unit]  # type: ignore[no-any-return]

    def scores(self, maker: Maker) -> list[Row]:
        """Score a policy with every forecaster on each network of its family.

        Raises
        ------
        PolicyFailure
            If the policy fails; the sentence has its name.
        """
        policy, rows = maker(), list[Row]()
        for name, network in self.networks.items():
            if isinstance(network, FAMILIES[policy.family]):
                on = self._fitted(name, network, policy)
                self.used[name] = on
                for age in self.conditions.ages:
                    rows += self._rows(maker, name, on, age)
        return rows

    def _fitted(self, name: str, network: Any, policy: Any) -> Any:
        """Return a network with what it takes from the run and the scope.

        Raises AnalysisError if it has no place for the ranks or experts of the run.
        """
        series, scope = self.series(UNITS[policy.family]), self.conditions.scope
        if isinstance(network, Cluster):
            for _, ranks, experts in (truth.shape for truth in series.layers.values()):
                if (experts + network.replicas) % ranks:
                    least = -experts % ranks
                    raise AnalysisError(
                        f"{ranks} ranks hold equal numbers of the {experts} experts "
                        f"and the replicas, but --replicas {network.replicas} makes "
                        f"{experts + network.replicas} slots: give {least}, "
                        f"{least + ranks} or {least + 2 * ranks}"
                    )
            network = replace(network, row_bytes=network.row_bytes or series.row_bytes)
            if scope.name != "exchange":
                backward = scope.name == "iteration"
                times = {"token_s": scope.token_s, "other_s": scope.other_s}
                network = replace(network, backward=backward, **times)
        if isinstance(network, PacketNetwork):
            for layer, truth in series.layers.items():
                last = max(series.ranks.get(layer, range(truth.shape[1])))
                if last >= network.network.ranks:
                    raise AnalysisError(
                        f"the network {name} has slots for ranks 0 to "
                        f"{network.network.ranks - 1}, but layer {number_of(layer)} "
                        f"uses rank {last}: give a larger one"
                    )
            if getattr(policy, "once", False) and isinstance(self.trace, Trace):
                phase = self.conditions.phase
                network = with_distinct_tokens(network, self.trace, phase=phase)
        return network

    def _forecasts(
        self, unit: str, forecaster: str, age: int
    ) -> dict[LayerKey, Sequence[Float64]]:
        key = ("forecasts", unit, forecaster, age)
        if key not in self._kept:
            series = self.series(unit)
            points = series.points(self.conditions.most)
            if age > points[0]:
                raise AnalysisError(
                    f"plans are evaluated from iteration {points[0]} on, so that their "
                    f"age is {points[0]} at most, but is {age}: lower --age, or give a "
                    "longer run"
                )
            forecast = partial(
                forecast_points,
                age=age,
                forecaster=forecaster,
                seed=self.conditions.seed,
            )
            self._kept[key] = {
                layer: forecast(truth, points) for layer, truth in series.layers.items()
            }
        return self._kept[key]  # type: ignore[no-any-return]

    def _bounds(self, unit: str, network: Any) -> tuple[Float64, float, float]:
        """Bound completions of iterations ``[n]``, and mean and longest port, bytes."""
        key = ("bounds", unit, network)
        if key not in self._kept:
            series = self.series(unit)
            points = series.points(self.conditions.most).tolist()
            scope = self.conditions.scope if unit == "bytes" else EXCHANGE
            groups: dict[int, list[list[float]]] = {}
            lines = []
            for layer, truth in series.layers.items():
                on = _part(network, series, layer)
                bounds = [
                    bound_layer(truth[p], on, scope, series.row_bytes) for p in points
                ]
                groups.setdefault(number_of(layer), []).append(bounds)
                if unit == "bytes":
                    lines += [line_bytes(crossing(truth[p])) for p in points]
            slowest = [np.max(layer, axis=0) for layer in groups.values()]
            port = (float(np.mean(lines)), max(lines)) if lines else (np.nan, np.nan)
            self._kept[key] = (np.sum(slowest, axis=0), *port)
        return self._kept[key]  # type: ignore[no-any-return]

    def _rows(self, maker: Maker, name: str, network: Any, age: int) -> list[Row]:
        policy, conditions = maker(), self.conditions
        unit = UNITS[policy.family]
        series = self.series(unit)
        points = series.points(conditions.most)
        runs: dict[str, Run] = {}
        for forecaster in conditions.forecasters if policy.forecasts else (NONE,):
            used = "persistence" if forecaster == NONE else forecaster
            forecasts = self._forecasts(unit, used, age)
            for other, run in runs.items():  # the best is often one of the others
                if _equal(forecasts, self._forecasts(unit, other, age)):
                    runs[forecaster] = run
                    break
            else:
                runs[forecaster] = run_policy(
                    maker,
                    series,
                    forecasts,
                    points,
                    network,
                    age=age,
                    hold=conditions.hold,
                    scope=conditions.scope,
                )
        best = runs.get("oracle")
        bound, line, longest = self._bounds(unit, network)
        optical = isinstance(network, OpticalSwitch)
        timed = optical and conditions.scope.name == "exchange"
        rows = []
        for forecaster, run in runs.items():
            took = np.array([[s.completion_s for s in row] for row in run.services])
            sums = took.sum(axis=1)
            times = sums if conditions.scope.name == "iteration" else took
            flat = [service for row in run.services for service in row]
            demand = sum(s.demand_bytes for s in flat)
            regret = UNKNOWN
            if best is not None and forecaster != "oracle":
                truth = np.array(
                    [[s.completion_s for s in row] for row in best.services]
                )
                regret = longer(sums, truth.sum(axis=1), span=max(age, conditions.hold))
            if forecaster == NONE and _planned_from_served(policy, series, points):
                forecaster = SERVED
            packets = getattr(network, "packet_bytes_s", 0.0)
            rows.append(
                {
                    "policy": policy.name,
                    "family": policy.family,
                    "network": name,
                    "forecaster": forecaster,
                    "age": age,
                    "delay_s": network.delay_s if optical else np.nan,
                    "circuits_of_port": network.circuits if optical else 0,
                    "exchanges": took.size,
                    "completion_p50_s": float(np.quantile(times, 0.5)),
                    "completion_p99_s": float(np.quantile(times, 0.99)),
                    "completion_mean_s": float(times.mean()),
                    **ends("over_bound", ratio(bound, sums, seed=conditions.seed)),
                    **ends("regret", regret),
                    "served_share": sum(s.planned_bytes for s in flat) / demand
                    if demand
                    else np.nan,
                    **{
                        key: float(np.mean([getattr(s, key) for s in flat]))
                        for key in (
                            *("reconfigurations", "moved_experts", "moved_bytes"),
                            "load_imbalance",
                        )
                    },
                    "planning_p50_s": float(np.quantile(run.planning_s, 0.5)),
                    "planning_max_s": float(run.planning_s.max()),
                    # an exchange's transfer by its busiest port, and the delay from
                    # which packets alone are never slower
                    "transfer_s": line / network.port_bytes_s if timed else np.nan,
                    "pays_below_s": longest / packets + network.window_s
                    if timed and packets
                    else np.nan,
                    "by_iteration_s": sums,
                }
            )
        return rows


def longer(times: Float64, others: Float64, *, span: int) -> Interval:
    """Compute how much longer times ``[n]`` are than others, as a share of these.

    Paired by iteration (block jackknife, Student).  ``span`` is the number of
    iterations over which the errors of plans are correlated.  A moving-block bootstrap
    of 32 iterations states more than twice as many differences where there are none.
    """
    less = gain(times, others, span=span)
    return Interval(value=-less.value, low=-less.high, high=-less.low)


def _equal(
    forecasts: Mapping[LayerKey, Sequence[Float64]],
    others: Mapping[LayerKey, Sequence[Float64]],
) -> bool:
    return all(
        np.array_equal(guess, other)
        for layer in forecasts
        for guess, other in zip(forecasts[layer], others[layer], strict=True)
    )


def _part(network: Any, series: ExchangeSeries, layer: LayerKey) -> Any:
    """Return the part of a network that the ranks of a layer use."""
    if isinstance(network, PacketNetwork) and layer in series.ranks:
        return network.part(series.ranks[layer])
    return network


def _planned_from_served(policy: Any, series: ExchangeSeries, points: Int64) -> bool:
    """Whether a file of plans was made from iterations of the run that it serves.

    A run is known by its digest, or by its file name where one has no digest.
    """
    if not isinstance(policy, FixedPlans) or policy.planned is None:
        return False
    same = policy.run == Path(series.name).name
    if policy.digest and series.digest:
        same = policy.digest == series.digest
    first, last = series.iterations[points[0]], series.iterations[points[-1]]
    return same and policy.planned[0] <= last and policy.planned[1] > first


# ---- one policy ----------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class Run:
    """How the plans of one policy were served."""

    services: tuple[tuple[Service, ...], ...]  # [n][layer], all groups of it together
    planning_s: Float64  # CPU seconds of each plan


def run_policy(
    maker: Maker,
    series: ExchangeSeries,
    forecasts: Mapping[LayerKey, Sequence[Float64]],
    points: Int64,
    network: Any,
    *,
    age: int = 1,
    hold: int = 1,
    scope: Scope = EXCHANGE,
) -> Run:
    """Let a policy plan each exchange of some iterations, and serve its plans.

    ``forecasts`` are ``[n, ...]`` of each layer at ``points`` ``[n]``, consecutive
    indices of iterations.  A plan serves ``hold`` iterations; its age grows meanwhile.
    ``scope`` is of plans between ranks; a cluster has its own.

    Raises
    ------
    PolicyFailure
        If the policy fails; the sentence has its name.
    """
    policy: Any = maker()
    if UNITS[policy.family] != "bytes":
        scope = EXCHANGE
    observes = hasattr(policy, "observe")
    plans: dict[LayerKey, Any] = {}
    waiting: list[tuple[int, View, Service]] = []
    services, planning = [], []
    for number, point in enumerate(points.tolist()):
        for then, view, done in [w for w in waiting if w[0] <= point - age]:
            with _failures(policy.name, f" in iteration {series.iterations[then]}"):
                policy.observe(view, done)
        waiting = [w for w in waiting if w[0] > point - age]
        groups: dict[int, list[Service]] = {}
        for layer, truth in series.layers.items():
            last, on = plans.get(layer), _part(network, series, layer)
            if number % hold == 0:
                known = forecasts[layer][number]
                view = _view(series, layer, point, known, on, age=age, hold=hold)
                where = f" for layer {layer}, iteration {series.iterations[point]}"
                with _failures(policy.name, where):
                    began = time.thread_time()
                    plans[layer] = policy.plan(view)
                    planning.append(time.thread_time() - began)
                    why = on.check(plans[layer], np.asarray(known))
                if why:
                    raise PolicyFailure(
                        f"{policy.name} made an impossible plan{where}: {why}"
                    )
            served = serve_layer(
                truth[point], plans[layer], on, last, scope, series.row_bytes
            )
            groups.setdefault(number_of(layer), []).append(served)
            if observes:
                waiting.append((point, view, served))
        services.append(
            tuple(  # a layer waits for the slowest of its groups
                added(parts, seconds=max(s.completion_s for s in parts))
                for parts in groups.values()
            )
        )
    return Run(services=tuple(services), planning_s=np.array(planning))


def _view(
    series: ExchangeSeries,
    layer: LayerKey,
    point: int,
    forecast: Float64,
    network: Any,
    *,
    age: int,
    hold: int,
) -> View:
    """Copy what is known when the plan for an exchange is made."""
    truth = series.layers[layer]
    end = point - age + 1
    size = 8 * truth.shape[1] * truth.shape[2]
    most = min(MEMORY, max(2, MEMORY_BYTES // size))
    order = list(series.layers)
    before = [
        series.layers[other][point]
        for other in order[: order.index(layer)]
        if age == 1
        and number_of(other) < number_of(layer)
        and series.layers[other].shape[1:] == truth.shape[1:]
    ]
    earlier = np.array(before, np.float64)
    return View(
        iteration=int(series.iterations[point]),
        layer=layer,
        phase=series.phase,
        age=age,
        hold=hold,
        past=np.array(truth[max(0, end - most) : end], np.float64),
        earlier=earlier if before else np.zeros((0, *truth.shape[1:])),
        forecast=np.array(forecast, np.float64),
        network=network,
    )


@contextmanager
def _failures(name: str, where: str) -> Iterator[None]:
    """Turn any exception of a policy into one sentence with its name."""
    try:
        yield
    except Exception as error:
        kind, _, text = first_line(error).partition(": ")
        raise PolicyFailure(
            f"{name} raised {kind}{where}{f': {text}' if text else ''}"
        ) from error
