"""Evaluate policies on runs: plan from copies of the past, serve the true traffic.

One loop over traces, policies, networks, forecasters and exchanges.  A view has new
arrays with copies of what is known when a plan is made; bytes that a plan does not
carry are never dropped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from moetraffic.analysis.exchange import beyond_last
from moetraffic.analysis.forecast import ends
from moetraffic.analysis.intervals import UNKNOWN, ratio
from moetraffic.arrays import Float64
from moetraffic.errors import AnalysisError
from moetraffic.result import Result
from moetraffic.spelling import check_choice, nearest
from moetraffic.trace import Trace
from moetraffic.trace.iterations import iteration_range, layer_numbers, names
from moetraffic.trace.what_if.loads import EQUAL_SHARES, over_ranks

from .catalog import Maker, first_line, policy_maker, validated
from .cluster import Cluster
from .networks import OPTICAL, OPTIONS, fitted, networks_of, part_of
from .optical import OpticalSwitch
from .plan_file import FixedPlans
from .policy import FAMILIES, UNITS, View
from .scores import NONE, SERVED, answer, longer
from .series import (
    FORECASTERS,
    MOST_SERVED,
    ExchangeSeries,
    LayerKey,
    byte_series,
    forecast_points,
    number_of,
    token_series,
)
from .service import crossing, line_bytes, together

DEFAULT_POLICIES = (
    *("packets", "rotation", "rotation-two-hop", "static-mean"),
    *("birkhoff", "solstice", "max-weight"),
)
"""Policies of circuits; without a packet switch all but the first."""

MEMORY = 64
"""Iterations of the past in a view."""

MEMORY_BYTES = 64 << 20
"""Memory of the past in a view; of large matrices it has fewer than MEMORY, 2 or more.
"""

Source = Trace | ExchangeSeries | str | Path
Row = dict[str, Any]
Forecasts = dict[LayerKey, Sequence[Float64]]


class PolicyFailure(Exception):
    """A policy that raised or made an impossible plan: one sentence."""


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """What all policies of an evaluation have in common."""

    forecasters: tuple[str, ...]
    ages: tuple[int, ...]  # iterations from the newest known one to the planned one
    hold: int  # iterations that a plan serves
    phase: str
    layers: tuple[int, ...] | None
    iterations: range | None
    most: int
    seed: int
    ep: int | None  # ranks of a load without source ranks
    networks: Mapping[str, Any] | None  # None: those of the options
    options: Mapping[str, Any] = field(default_factory=dict)  # of networks_of


def evaluate(
    traces: Source | Sequence[Source],
    policies: Sequence[str | Maker] | str = DEFAULT_POLICIES,
    *,
    networks: Mapping[str, Any] | None = None,
    forecasters: Sequence[str] = ("persistence", "mean", "chosen", "oracle"),
    age: int | Sequence[int] = 1,
    hold: int = 1,
    phase: str = "dispatch",
    layers: Sequence[int] | str | int | None = None,
    iterations: range | str | None = None,
    ep: int | None = None,
    most: int = MOST_SERVED,
    seed: int = 0,
    client: Any = None,
    on_run: Callable[[int, str], None] | None = None,
    **options: Any,
) -> Result:
    """Evaluate policies on the exchanges of runs: plan from the past, serve the truth.

    The second half of a run is served, at most the last ``most`` iterations of it;
    settings of forecasters are chosen on the second quarter.

    Parameters
    ----------
    traces
        A run, or several like reruns or samples; or series made from elsewhere.
    policies
        Names of :func:`.catalog.policy_maker` (a list, or a text with commas between),
        or functions that make a policy.
    networks
        Name to what a family is served by; None: those of the options.
    forecasters
        Some of FORECASTERS; "oracle" is added, for the cost of forecasts.
    age
        Iterations from the newest known exchange to the one that a plan serves first;
        several are evaluated one after another.
    hold
        Iterations that a plan serves.
    phase, layers, iterations
        Selection of exchanges.
    ep
        Ranks that share a load of experts without source ranks.
    most
        Maximum number of iterations that are served.
    seed
        Of the bootstrap and the shuffled control.
    client
        Of a dask cluster that evaluates policies by name on files; None: this process.
    on_run
        Called after each policy with the number done and its name.
    options
        OPTIONS of the command for the networks: texts with a unit, as
        ``capacity="1Gbps", reconfigure="1us"``, or numbers of bytes a second and of
        seconds; ``reconfigure``, ``circuits`` and ``network`` may be lists.

    Returns
    -------
    Result
        Table "policies": each policy with its best forecast; "scores": all rows; and
        "networks".  With several traces, means and intervals are over traces.  A
        policy that fails is named in a note; the others go on.

    Raises
    ------
    AnalysisError
        If a name or number is impossible, or no policy could be evaluated.
    """
    if wrong := [name for name in options if name not in OPTIONS]:
        remedy = nearest(
            wrong[0], {**evaluate.__annotations__, **dict.fromkeys(OPTIONS)}
        )
        raise AnalysisError(
            f"evaluate has no option {wrong[0]!r}: {remedy}choose one of its arguments "
            f"or {', '.join(OPTIONS)}"
        )
    sources = [traces] if isinstance(traces, Source) else list(traces)
    if not sources:
        raise AnalysisError("policies are evaluated on traces: name one or more")
    series = any(isinstance(source, ExchangeSeries) for source in sources)
    if options and (networks is not None or series):
        raise AnalysisError(
            f"{', '.join(options)} make the networks of a trace, but networks or a "
            "series are given: leave these options out, and give networks"
        )
    ages = (age,) if isinstance(age, int) else tuple(age)
    for name, value in (("age", min(ages)), ("hold", hold), ("most", most)):
        if value < 1:
            raise AnalysisError(
                f"{name} must be at least 1, but is {value}: raise --{name}"
            )
    for name in forecasters:
        check_choice("a forecaster", name, FORECASTERS, AnalysisError)
    chosen = layer_numbers(layers)
    conditions = Conditions(
        forecasters=tuple(dict.fromkeys((*forecasters, "oracle"))),
        ages=tuple(dict.fromkeys(ages)),
        hold=hold,
        phase=phase,
        layers=None if chosen is None else tuple(chosen),
        iterations=iteration_range(iterations),
        ep=ep,
        most=most,
        seed=seed,
        networks=networks,
        options=options,
    )
    asked = names(policies) if isinstance(policies, str) else list(policies)
    makers = [
        policy_maker(p) if isinstance(p, str) else validated(p, str(p)) for p in asked
    ]
    benches = [
        Bench(s if isinstance(s, ExchangeSeries) else Trace.open(s), conditions)
        for s in sources
    ]
    rows, failures = list[Row](), list[str]()
    for bench in benches:
        scored = bench.all_scores(asked, makers, client)
        for number, (maker, made) in enumerate(zip(makers, scored, strict=True)):
            if isinstance(made, PolicyFailure):
                if isinstance(maker(), FixedPlans):
                    raise AnalysisError(
                        f"a file of plans fits the trace, but {made}: plan for this "
                        "trace"
                    ) from None
                failures.append(f"{made}.")
            else:
                rows += [{"file": bench.name, **row} for row in made]
            if on_run is not None:
                on_run(number + 1, maker().name)
    if not rows:
        why = " ".join(failures) or (
            f"the networks {', '.join(benches[-1].networks)} serve none of their "
            "families: give one with --network"
        )
        raise AnalysisError(f"no policy could be evaluated: {why}")
    about = {}
    for name in dict.fromkeys(row["network"] for row in rows):
        on = benches[-1].used.get(name, benches[-1].networks[name])
        about[name] = {"rates": on.described(), "reference": on.reference()}
    runs, notes = list[Row](), list[str]()
    for bench in benches:
        run, own = bench.facts(UNITS[rows[0]["family"]])
        runs.append(run)
        prefix = f"{Path(bench.name).name}: " * (len(benches) > 1)
        notes += [prefix + note for note in own]
        if hold >= run["served"]:
            notes.append(
                f"plans are made once, as --hold {hold} covers all {run['served']} "
                "iterations"
            )
    data = {"phase": phase, "runs": runs, "failures": failures}
    return answer(
        rows,
        about,
        data=data,
        span=max(*conditions.ages, hold),
        notes=[*notes, *failures],
    )


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

    def kept(self, key: Any, make: Callable[[], Any]) -> Any:
        """Return what several policies need, and compute it once."""
        if key not in self._kept:
            self._kept[key] = make()
        return self._kept[key]

    def series(self, unit: str) -> ExchangeSeries:
        """Read the series of a unit, "bytes" or "tokens"."""
        trace = self.trace
        if isinstance(trace, ExchangeSeries):
            return trace
        read = {"bytes": byte_series, "tokens": token_series}[unit]
        asked = self.conditions
        return self.kept(  # type: ignore[no-any-return]
            unit,
            lambda: read(
                trace,
                phase=asked.phase,
                layers=asked.layers,
                iterations=asked.iterations,
            ),
        )

    def facts(self, unit: str) -> tuple[Row, list[str]]:
        """Return what is served, and notes on iterations that are left out."""
        read, notes = self.series(unit), list[str]()
        points = read.points(self.conditions.most)
        if isinstance(self.trace, Trace):
            newest = int(self.trace.iterations[-1])
            notes = beyond_last(self.conditions.iterations, newest)
            notes += [EQUAL_SHARES] * (self.conditions.ep is not None)
        shapes = [truth.shape[1] for truth in read.layers.values()]
        run = {
            "file": self.name,
            "iterations": tuple(read.iterations[points[[0, -1]]].tolist()),
            "served": len(points),
            "layers": sorted({number_of(layer) for layer in read.layers}),
            "ranks": len({r for members in read.ranks.values() for r in members})
            or max(shapes),
        }
        return run, [*read.notes, *notes]

    def all_scores(
        self, asked: Sequence[Any], makers: Sequence[Maker], client: Any
    ) -> Iterator[list[Row] | PolicyFailure]:
        """Yield the rows of each policy, computed here or on a dask cluster."""
        if client is None:
            yield from map(self.scores, makers)
            return
        if not all(isinstance(name, str) for name in asked):
            raise AnalysisError(
                "a cluster evaluates policies by name or file.py:Class: leave out "
                "--dask, or plans"
            )
        file = str(Path(self.name).resolve())
        tasks = [
            client.submit(_task, file, name, self.conditions, pure=False)
            for name in asked
        ]
        for task in tasks:
            yield task.result()
            task.release()

    def scores(self, maker: Maker) -> list[Row] | PolicyFailure:
        """Score a policy with every forecaster on each network of its family."""
        policy, rows = maker(), list[Row]()
        series = self.series(UNITS[policy.family])
        try:
            for name, network in self.networks.items():
                if isinstance(network, FAMILIES[policy.family]):
                    on = fitted(name, network, series, policy, self.trace)
                    self.used[name] = on
                    for age in self.conditions.ages:
                        rows += self.rows(maker, name, on, age)
        except PolicyFailure as failure:
            return failure
        return rows

    def forecasts(self, unit: str, forecaster: str, age: int) -> Forecasts:
        """Forecast all points of all layers.

        Raises AnalysisError if less is known than the age asks for.
        """
        series = self.series(unit)
        points = series.points(self.conditions.most)
        if age > points[0]:
            raise AnalysisError(
                f"plans are evaluated from iteration {points[0]} on, so that their "
                f"age is {points[0]} at most, but is {age}: lower --age, or give a "
                "longer run"
            )
        return self.kept(  # type: ignore[no-any-return]
            ("forecasts", unit, forecaster, age),
            lambda: {
                layer: forecast_points(
                    truth,
                    points,
                    age=age,
                    forecaster=forecaster,
                    seed=self.conditions.seed,
                )
                for layer, truth in series.layers.items()
            },
        )

    def bounds(self, unit: str, network: Any) -> tuple[Float64, float, float]:
        """Bound completions of iterations ``[n]``, and mean and longest port, bytes."""
        series = self.series(unit)
        points = series.points(self.conditions.most).tolist()
        slowest: dict[int, Float64] = {}  # of the groups of a layer
        lines = list[float]()
        for layer, truth in series.layers.items():
            on = part_of(network, series, layer)
            least = [on.bound(truth[p]) for p in points]
            number = number_of(layer)
            slowest[number] = np.maximum(slowest.get(number, 0.0), least)
            if unit == "bytes":
                lines += [line_bytes(crossing(truth[p])) for p in points]
        port = (float(np.mean(lines)), max(lines)) if lines else (np.nan, np.nan)
        return np.sum([*slowest.values()], axis=0), *port

    def rows(self, maker: Maker, name: str, network: Any, age: int) -> list[Row]:
        """Score a policy with each forecaster at one age on one network."""
        policy, conditions = maker(), self.conditions
        unit = UNITS[policy.family]
        series = self.series(unit)
        runs: dict[str, tuple[pd.DataFrame, Float64]] = {}
        for forecaster in conditions.forecasters if policy.forecasts else (NONE,):
            used = "persistence" if forecaster == NONE else forecaster
            forecasts = self.forecasts(unit, used, age)
            # the chosen forecaster is often one of the others
            same = (f for f in runs if _equal(forecasts, self.forecasts(unit, f, age)))
            if (other := next(same, None)) is not None:
                runs[forecaster] = runs[other]
            else:
                runs[forecaster] = run_policy(
                    maker, series, forecasts, network, age, conditions
                )
        bound, line, longest = self.kept(
            ("bounds", unit, network), lambda: self.bounds(unit, network)
        )
        optical = isinstance(network, OpticalSwitch)
        packets = getattr(network, "packet_bytes_s", 0.0)
        about = {
            "policy": policy.name,
            "family": policy.family,
            "network": name,
            "age": age,
            "delay_s": network.delay_s if optical else np.nan,
            "circuits_of_port": network.circuits if optical else 0,
            # an exchange's transfer by its busiest port, and the delay from which
            # packets alone are never slower
            "transfer_s": line / network.port_bytes_s if optical else np.nan,
            "pays_below_s": longest / packets + network.window_s
            if optical and packets
            else np.nan,
        }
        if isinstance(policy, FixedPlans) and policy.serves_its_source(
            series, series.points(conditions.most)
        ):
            runs = {SERVED: runs[NONE]}
        sums = {
            forecaster: frame.groupby("iteration").completion_s.sum().to_numpy()
            for forecaster, (frame, _) in runs.items()
        }
        rows = []
        for forecaster, (frame, planning_s) in runs.items():
            took = sums[forecaster]
            times = frame.completion_s
            demand = frame.demand_bytes.sum()
            regret = UNKNOWN
            if forecaster != "oracle" and "oracle" in sums:
                regret = longer(took, sums["oracle"], span=max(age, conditions.hold))
            rows.append(
                {
                    **about,
                    "forecaster": forecaster,
                    "exchanges": len(frame),
                    "completion_p50_s": float(np.quantile(times, 0.5)),
                    "completion_p99_s": float(np.quantile(times, 0.99)),
                    "completion_mean_s": float(times.mean()),
                    **ends("over_bound", ratio(bound, took, seed=conditions.seed)),
                    **ends("regret", regret),
                    "served_share": frame.planned_bytes.sum() / demand
                    if demand
                    else np.nan,
                    "reconfigurations": float(frame.reconfigurations.mean()),
                    "moved_experts": float(frame.moved_experts.mean()),
                    "moved_bytes": float(frame.moved_bytes.mean()),
                    "load_imbalance": float(frame.load_imbalance.mean()),
                    "planning_p50_s": float(np.quantile(planning_s, 0.5)),
                    "planning_max_s": float(planning_s.max()),
                    "by_iteration_s": took,
                }
            )
        return rows


def _equal(forecasts: Forecasts, others: Forecasts) -> bool:
    return all(
        np.array_equal(guess, other)
        for layer in forecasts
        for guess, other in zip(forecasts[layer], others[layer], strict=True)
    )


def _task(file: str, name: str, conditions: Conditions) -> list[Row] | PolicyFailure:
    """Evaluate a policy on a trace file that all workers share."""
    with Trace.open(file) as trace:
        return Bench(trace, conditions).scores(policy_maker(name))


# ---- one policy ----------------------------------------------------------------------


def run_policy(
    maker: Maker,
    series: ExchangeSeries,
    forecasts: Forecasts,
    network: Any,
    age: int,
    conditions: Conditions,
) -> tuple[pd.DataFrame, Float64]:
    """Let a policy plan each exchange of the served iterations, and serve its plans.

    A plan serves ``hold`` iterations; its age grows meanwhile.

    Returns
    -------
    DataFrame, array
        Fields of :class:`.service.Service` by iteration and layer, all groups of it
        together; CPU seconds of each plan.

    Raises
    ------
    PolicyFailure
        If the policy fails; the sentence has its name.
    """
    policy: Any = maker()
    plans: dict[LayerKey, Any] = {}
    rows, planning = list[Row](), list[float]()
    for number, point in enumerate(series.points(conditions.most).tolist()):
        groups: dict[int, list[Any]] = {}
        for layer, truth in series.layers.items():
            last, on = plans.get(layer), part_of(network, series, layer)
            if number % conditions.hold == 0:
                known = forecasts[layer][number]
                view = view_of(series, layer, point, known, on, age, conditions.hold)
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
            served = on.serve(truth[point], plans[layer], last)
            groups.setdefault(number_of(layer), []).append(served)
        for layer_number, parts in groups.items():
            whole = together(parts)
            rows.append(
                {
                    "iteration": point,
                    "layer": layer_number,
                    **vars(whole),
                    "load_imbalance": whole.load_imbalance,
                }
            )
    return pd.DataFrame(rows), np.array(planning)


def view_of(
    series: ExchangeSeries,
    layer: LayerKey,
    point: int,
    forecast: Float64,
    network: Any,
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
    return View(
        iteration=int(series.iterations[point]),
        layer=layer,
        phase=series.phase,
        age=age,
        hold=hold,
        past=np.array(truth[max(0, end - most) : end], np.float64),
        earlier=np.array(before, np.float64).reshape(-1, *truth.shape[1:]),
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
