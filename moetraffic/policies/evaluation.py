"""Evaluate policies on a run: completion, ratio to the bound, regret, served share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from moetraffic.analysis.resampling import UNTOLD, ratio
from moetraffic.errors import AnalysisError
from moetraffic.trace import Trace

from .catalog import Maker, policy_maker, validated
from .exchange_series import (
    FORECASTERS,
    ExchangeSeries,
    LayerKey,
    byte_series,
    first_point,
    forecast_points,
    number_of,
    token_series,
)
from .family import FAMILIES, Family, network_of
from .harness import PolicyFailure, PolicyRun, foresight, run_policy
from .jobs.exchanges import single_job
from .scores import NONE, Evaluation, PolicyScore, longer
from .service.cluster import Cluster
from .service.layer import EXCHANGE, Scope, bound_layer
from .service.optical import OpticalSwitch
from .transmission.two_level import with_distinct_tokens

if TYPE_CHECKING:
    pass

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]

OPTICAL = OpticalSwitch(
    rate_bytes_s=50e9, packet_bytes_s=6.25e9, delay_s=10e-6, rest="packets"
)
"""Circuits of 400 Gbps and a packet switch of 50 Gbps a port: 8 to 1, as in Etalon
(M. K. Mukerjee et al., NSDI 2020)."""

Forecasts = dict[LayerKey, Sequence[Float64] | Float64]
"""Forecasts ``[n, ...]`` at the served iterations, by layer."""


def evaluate(
    trace: Trace | ExchangeSeries,
    policies: Sequence[str | Maker],
    *,
    networks: Mapping[str, Any] | None = None,
    forecasters: Sequence[str] = ("persistence", "best", "oracle"),
    age: int = 1,
    hold: int = 1,
    ages: Sequence[int] = (),
    delays_s: Sequence[float] = (),
    scope: Scope = EXCHANGE,
    phase: str = "dispatch",
    layers: Sequence[int] | None = None,
    iterations: range | None = None,
    most: int = 64,
    limit_s: float = 10.0,
    seed: int = 0,
    on_run: Callable[[int, str], None] | None = None,
) -> Evaluation:
    """Evaluate policies on the exchanges of a run: plan from the past, serve the truth.

    The second half of the run is served, at most the last ``most`` iterations of it;
    settings of forecasters are chosen on the second quarter.

    Parameters
    ----------
    trace
        A run, or series made from elsewhere.
    policies
        Names of :func:`.catalog.policy_names`, or functions that make a policy.
    networks
        Name to what a family is served by; None: OPTICAL, and a
        :class:`.service.cluster.Cluster` with ports of 400 Gbps for placements.
    forecasters
        Some of FORECASTERS; "oracle" is added, for the regret.
    age
        Iterations from the newest known exchange to the one that a plan serves first.
    hold
        Iterations that a plan serves.
    ages, delays_s
        Further ages, and further delays of optical switches, evaluated one at a time.
    scope
        What completion times are of; a placement's are of a layer at least.
    phase, layers, iterations
        Selection of exchanges.
    most
        Maximum number of iterations that are served.
    limit_s, seed
        Seconds for one plan; of the bootstrap and the shuffled control.
    on_run
        Called after each policy with the number done and its name.

    Returns
    -------
    Evaluation
        A policy that fails has a sentence in ``failures``; the others go on.

    Raises
    ------
    AnalysisError
        If a name or number is impossible, or no policy could be evaluated.
    """
    for name, least, value in (
        ("age", 1, min((age, *ages))),
        ("hold", 1, hold),
        ("most", 1, most),
    ):
        if value < least:
            raise AnalysisError(
                f"{name} must be at least {least}, but is {value}: raise --{name}"
            )
    if unknown := set(forecasters) - set(FORECASTERS):
        raise AnalysisError(
            f"a forecaster is one of {', '.join(FORECASTERS)}, not "
            f"{', '.join(map(repr, sorted(unknown)))}: choose among these"
        )
    if scope.name != "exchange" and phase != "dispatch":
        raise AnalysisError(
            f"a layer begins with its dispatch, but the phase is {phase}: leave out "
            "--phase"
        )
    makers = [
        policy_maker(p) if isinstance(p, str) else validated(p, str(p))
        for p in policies
    ]
    if networks is None:
        networks = {"optical": OPTICAL, "cluster": Cluster(rate_bytes_s=50e9)}
    by_unit = {FAMILIES[maker().family].unit for maker in makers}
    if isinstance(trace, ExchangeSeries):
        series = dict.fromkeys(by_unit, trace)
    else:
        chosen: dict[str, Any] = {"layers": layers, "iterations": iterations}
        series = {u: READERS[u](trace, phase=phase, **chosen) for u in by_unit}
    bench = _Bench(
        series=series,
        forecasters=tuple(dict.fromkeys((*forecasters, "oracle"))),
        hold=hold,
        scope=scope,
        most=most,
        limit_s=limit_s,
        seed=seed,
    )
    cases = [(age, None), *((a, None) for a in ages), *((age, d) for d in delays_s)]
    scores: list[list[PolicyScore]] = [[], [], []]
    failures: list[str] = []
    for number, maker in enumerate(makers):
        family = FAMILIES[maker().family]
        try:
            for name, network in networks.items():
                if not isinstance(network, family.network):
                    continue
                if isinstance(network, Cluster):
                    rows = network.row_bytes or series[family.unit].row_bytes
                    network = replace(network, row_bytes=rows)
                    if scope.name != "exchange":
                        network = replace(
                            network,
                            token_s=scope.token_s,
                            other_s=scope.other_s,
                            backward=scope.name == "iteration",
                        )
                if getattr(maker(), "once", False) and isinstance(trace, Trace):
                    network = with_distinct_tokens(network, trace, phase=phase)
                bench.audit(maker, family, network, age=age)
                for at, (older, delay) in enumerate(cases):
                    kind = 0 if at == 0 else 1 if delay is None else 2
                    on = network
                    if delay is not None:
                        if not isinstance(network, OpticalSwitch):
                            continue
                        on = network.with_delay(delay)
                    scores[kind] += bench.scores(maker, family, name, on, age=older)
        except PolicyFailure as failure:
            failures.append(f"{failure}.")
        if on_run is not None:
            on_run(number + 1, maker().name)
    if not scores[0]:
        raise AnalysisError(
            "no policy could be evaluated: "
            + (
                " ".join(failures)
                or f"the networks {', '.join(networks)} serve none of their families: "
                "give one with --network"
            )
        )
    one = next(iter(series.values()))
    points = bench.points(one)
    return Evaluation(
        run=one.name,
        phase=one.phase,
        completion=scope.name,
        iterations=(int(one.iterations[points[0]]), int(one.iterations[points[-1]])),
        layers=tuple(dict.fromkeys(map(number_of, one.layers))),
        ranks=max(truth.shape[1] for truth in one.layers.values()),
        scores=tuple(scores[0]),
        by_age=tuple(scores[1]),
        by_delay=tuple(scores[2]),
        failures=tuple(failures),
    )


READERS: Mapping[str, Callable[..., ExchangeSeries]] = {
    "bytes": byte_series,
    "tokens": token_series,
    "jobs": single_job,
}
"""Readers of a trace by the unit of their series."""


class _Bench:
    """Series, and the forecasts that several policies share."""

    def __init__(
        self,
        *,
        series: Mapping[str, ExchangeSeries],
        forecasters: tuple[str, ...],
        hold: int,
        scope: Scope,
        most: int,
        limit_s: float,
        seed: int,
    ) -> None:
        self.series = series
        self.forecasters = forecasters
        self.hold, self.scope, self.most = hold, scope, most
        self.limit_s, self.seed = limit_s, seed
        self._forecasts: dict[tuple[str, str, int], Forecasts] = {}
        self._bounds: dict[tuple[str, Any], Float64] = {}

    def points(self, series: ExchangeSeries) -> Int64:
        """Return the iterations that are served, ``[n]`` consecutive indices."""
        steps = len(series.iterations)
        return np.arange(max(first_point(steps), steps - self.most), steps)

    def forecasts(self, unit: str, forecaster: str, age: int) -> Forecasts:
        """Forecast every layer at the points; kept for the next policy."""
        key = (unit, forecaster, age)
        if key not in self._forecasts:
            series = self.series[unit]
            points = self.points(series)
            if age > points[0]:
                raise AnalysisError(
                    f"an age is at most the first {points[0]} iterations, but is {age}:"
                    " lower --age, or give a longer run"
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
            limit_s=self.limit_s,
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
            parts = {n: network_of(network, series.ranks.get(n)) for n in series.layers}
            self._bounds[family.name, network] = np.array(
                [
                    [bound(t[p], network=parts[n]) for n, t in series.layers.items()]
                    for p in self.points(series).tolist()
                ]
            )
        return self._bounds[family.name, network]

    def scores(
        self, maker: Maker, family: Family, name: str, network: Any, *, age: int
    ) -> Iterable[PolicyScore]:
        """Score a policy with every forecaster; those without a forecast once."""
        series = self.series[family.unit]
        points = self.points(series)
        policy = maker()
        forecasters = self.forecasters if policy.forecasts else (NONE,)
        bound = self.bounds(family, network)
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
                    limit_s=self.limit_s,
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
        regret = UNTOLD
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
