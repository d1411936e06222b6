"""Run a policy with all forecasters on a series, and score it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from moetraffic.analysis.intervals import UNKNOWN, ratio
from moetraffic.arrays import Float64, Int64
from moetraffic.errors import AnalysisError

from .catalog import Maker
from .exchange_series import (
    ExchangeSeries,
    LayerKey,
    forecast_points,
    number_of,
    served_points,
)
from .family import Family, network_of
from .harness import PolicyFailure, PolicyRun, foresight, run_policy
from .scores import NONE, PolicyScore, longer
from .service.layer import EXCHANGE, Scope, bound_layer
from .service.optical import OpticalSwitch, crossing, line_bytes

Forecasts = dict[LayerKey, Sequence[Float64] | Float64]
"""Forecasts ``[n, ...]`` at the served iterations, by layer."""


class Bench:
    """Series, and the forecasts that several policies share."""

    def __init__(
        self,
        *,
        series: Mapping[str, ExchangeSeries],
        forecasters: tuple[str, ...],
        hold: int,
        scope: Scope,
        most: int,
        seed: int,
    ) -> None:
        self.series = series
        self.forecasters = forecasters
        self.hold, self.scope, self.most = hold, scope, most
        self.seed = seed
        self._forecasts: dict[tuple[str, str, int], Forecasts] = {}
        self._bounds: dict[tuple[str, Any], Float64] = {}
        self._tokens: dict[str, float] = {}
        self._ports: dict[str, Float64] = {}

    def points(self, series: ExchangeSeries) -> Int64:
        """Return the iterations that are served, ``[n]`` consecutive indices."""
        return served_points(len(series.iterations), self.most)

    def forecasts(self, unit: str, forecaster: str, age: int) -> Forecasts:
        """Forecast every layer at the points; kept for the next policy."""
        key = (unit, forecaster, age)
        if key not in self._forecasts:
            series = self.series[unit]
            points = self.points(series)
            if age > points[0]:
                raise AnalysisError(
                    f"plans are evaluated from iteration {points[0]} on, so that their "
                    f"age is {points[0]} at most, but is {age}: lower --age, or give a "
                    "longer run"
                )
            self._forecasts[key] = {
                layer: forecast_points(
                    truth, points, age=age, forecaster=forecaster, seed=self.seed
                )
                for layer, truth in series.layers.items()
            }
        return self._forecasts[key]

    def audit(self, maker: Maker, family: Family, network: Any, *, age: int) -> None:
        """Raise PolicyFailure if a policy uses traffic that is not known yet."""
        series = self.series[family.unit]
        why = foresight(
            *(maker, series, network),
            points=self.points(series),
            age=age,
            seed=self.seed,
        )
        if why:
            raise PolicyFailure(why)

    def bounds(self, family: Family, network: Any) -> Float64:
        """Bound completions ``[n, layers]`` from below; kept for the next policy."""
        if (family.name, network) not in self._bounds:
            series = self.series[family.unit]
            bound = partial(
                bound_layer,
                family.bound,
                scope=self.scope if family.unit == "bytes" else EXCHANGE,
                row_bytes=series.row_bytes,
            )
            points = self.points(series).tolist()
            groups: dict[int, list[list[float]]] = {}
            for key, truth in series.layers.items():
                part = network_of(network, series.ranks.get(key))
                every = [bound(truth[p], network=part) for p in points]
                groups.setdefault(number_of(key), []).append(every)
            slowest = [np.max(of, axis=0) for of in groups.values()]
            self._bounds[family.name, network] = np.array(slowest).T
        return self._bounds[family.name, network]

    def tokens(self, unit: str) -> float:
        """Return the mean token copies that a rank sends in an exchange, or NaN."""
        if unit not in self._tokens:
            series = self.series[unit]
            size = series.row_bytes if unit == "bytes" else 1
            each = [float(one.sum()) / len(one) for one in self._served(unit)]
            self._tokens[unit] = float(np.mean(each)) / size if size else float("nan")
        return self._tokens[unit]

    def _served(self, unit: str) -> Iterator[Float64]:
        """Yield the matrix of each layer at each point."""
        series = self.series[unit]
        for truth in series.layers.values():
            for point in self.points(series).tolist():
                yield truth[point]

    def port_seconds(self, unit: str, network: Any) -> tuple[float, float]:
        """Bound exchanges by their busiest port: circuits' mean, packets' maximum.

        An exchange that packets alone end before the first reconfiguration does gains
        nothing by circuits.  NaN where there are none, or more than exchanges is timed.
        """
        if not isinstance(network, OpticalSwitch) or self.scope.name != "exchange":
            return float("nan"), float("nan")
        if unit not in self._ports:
            sums = [line_bytes(crossing(one)) for one in self._served(unit)]
            self._ports[unit] = np.array(sums)
        sent = self._ports[unit]
        rate = network.packet_bytes_s
        return (
            float(sent.mean()) / network.port_bytes_s,
            float(sent.max()) / rate if rate else float("nan"),
        )

    def scores(
        self,
        maker: Maker,
        family: Family,
        name: str,
        network: Any,
        *,
        age: int,
    ) -> Iterable[PolicyScore]:
        """Score a policy with every forecaster; those without a forecast once."""
        series = self.series[family.unit]
        points = self.points(series)
        policy = maker()
        forecasters = self.forecasters if policy.forecasts else (NONE,)
        bound = self.bounds(family, network)
        transfer_s, packets_s = self.port_seconds(family.unit, network)
        runs: dict[str, PolicyRun] = {}
        for forecaster in forecasters:
            used = "persistence" if forecaster == NONE else forecaster
            forecasts = self.forecasts(family.unit, used, age)
            for other, run in runs.items():
                # the best forecaster is often one of the others
                if _equal(forecasts, self.forecasts(family.unit, other, age)):
                    runs[forecaster] = run
                    break
            else:
                runs[forecaster] = run_policy(
                    *(maker, series, forecasts, points, network),
                    age=age,
                    hold=self.hold,
                    scope=self.scope,
                )
        best = _completions(runs["oracle"]) if "oracle" in runs else None
        return [
            self._score(
                *(run, bound, best if forecaster != "oracle" else None),
                policy=policy.name,
                family=family.name,
                network=name,
                forecaster=forecaster,
                age=age,
                delay_s=getattr(network, "delay_s", float("nan")),
                circuits=getattr(network, "circuits", 0),
                transfer_s=transfer_s,
                pays_below_s=packets_s + getattr(network, "window_s", 0.0),
                tokens=self.tokens(family.unit),
            )
            for forecaster, run in runs.items()
        ]

    def _score(
        self,
        run: PolicyRun,
        bound: Float64,
        best: Float64 | None,
        *,
        age: int,
        **names: Any,
    ) -> PolicyScore:
        flat = [one for row in run.services for one in row]
        took = _completions(run)
        sums = took.sum(axis=1)
        each = sums if self.scope.name == "iteration" else took
        demand = sum(one.demand_bytes for one in flat)
        planned = sum(one.planned_bytes for one in flat)
        regret = UNKNOWN
        if best is not None:
            regret = longer(sums, best.sum(axis=1), span=max(age, self.hold))
        return PolicyScore(
            **names,
            age=age,
            exchanges=took.size,
            completion_p50_s=float(np.quantile(each, 0.5)),
            completion_p99_s=float(np.quantile(each, 0.99)),
            completion_mean_s=float(each.mean()),
            over_bound=ratio(bound.sum(axis=1), sums, seed=self.seed),
            regret=regret,
            served_share=planned / demand if demand else float("nan"),
            reconfigurations=float(np.mean([s.reconfigurations for s in flat])),
            moved_experts=float(np.mean([s.moved_experts for s in flat])),
            moved_bytes=float(np.mean([s.moved_bytes for s in flat])),
            load_imbalance=float(np.mean([s.load_imbalance for s in flat])),
            planning_p50_s=float(np.quantile(run.planning_s, 0.5)),
            planning_max_s=float(run.planning_s.max()),
            by_iteration_s=tuple(sums.tolist()),
        )


def _equal(one: Forecasts, other: Forecasts) -> bool:
    """Compare forecasts in memory; others are of simple forecasters, which differ."""
    pairs = [(one[layer], other[layer]) for layer in one]
    held = all(isinstance(a, np.ndarray) for pair in pairs for a in pair)
    return held and all(np.array_equal(a, b) for a, b in pairs)


def _completions(run: PolicyRun) -> Float64:
    """Return the completion times ``[n, layers]`` of a run."""
    return np.array([[one.completion_s for one in row] for row in run.services])
