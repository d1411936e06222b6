"""Evaluate policies on runs: completion, ratio to the bound, cost of forecasts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from moetraffic.analysis.exchange import beyond_last
from moetraffic.errors import AnalysisError
from moetraffic.result import Result
from moetraffic.spelling import check_choice, nearest
from moetraffic.trace import Trace
from moetraffic.trace.iterations import iteration_range, layer_numbers, names
from moetraffic.trace.what_if.loads import EQUAL_SHARES

from .bench import Bench, Conditions, PolicyFailure, Row
from .catalog import Maker, policy_maker, validated
from .networks import networks_of
from .plan_file import FixedPlans
from .policy import UNITS
from .scores import answer
from .series import FORECASTERS, MOST_SERVED, ExchangeSeries, number_of
from .service import EXCHANGE, Scope

DEFAULT_POLICIES = (
    *("packets", "rotation", "rotation-two-hop", "static-mean"),
    *("birkhoff", "solstice", "max-weight"),
)
"""Policies of circuits; without a packet switch all but the first."""

OPTIONS = tuple(networks_of.__kwdefaults__ or ())
CLUSTER = ("expert_bytes", "replicas", "nodes", "groups", "token_s", "row_bytes")
"""Options of the command that make networks, as keywords of :func:`evaluate`."""

Source = Trace | ExchangeSeries | str | Path


def evaluate(
    traces: Source | Sequence[Source],
    policies: Sequence[str | Maker] | str = DEFAULT_POLICIES,
    *,
    networks: Mapping[str, Any] | None = None,
    forecasters: Sequence[str] = ("persistence", "mean", "chosen", "oracle"),
    age: int | Sequence[int] = 1,
    hold: int = 1,
    scope: Scope = EXCHANGE,
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
    scope
        What completion times are of; a placement's are of a layer at least.
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
        OPTIONS and CLUSTER of the command for the networks: texts with a unit, as
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
    known = (*OPTIONS, *CLUSTER)
    if wrong := [name for name in options if name not in known]:
        arguments = {**evaluate.__annotations__, **dict.fromkeys(known)}
        raise AnalysisError(
            f"evaluate has no option {wrong[0]!r}: {nearest(wrong[0], arguments)}"
            f"choose one of its arguments or {', '.join(known)}"
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
    if scope.name != "exchange" and phase != "dispatch":
        raise AnalysisError(
            f"a layer begins with its dispatch, but the phase is {phase}: leave out "
            "--phase"
        )
    chosen_layers = layer_numbers(layers)
    conditions = Conditions(
        forecasters=tuple(dict.fromkeys((*forecasters, "oracle"))),
        ages=tuple(dict.fromkeys(ages)),
        hold=hold,
        scope=scope,
        phase=phase,
        layers=None if chosen_layers is None else tuple(chosen_layers),
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
    rows, failures, notes, about = (
        list[Row](),
        list[str](),
        list[str](),
        dict[str, Any](),
    )
    served: list[tuple[str, Bench]] = []
    for source in sources:
        bench = Bench(
            source if isinstance(source, ExchangeSeries) else Trace.open(source),
            conditions,
        )
        served.append((bench.name, bench))
        for number, (maker, scored) in enumerate(
            zip(makers, _scores(bench, asked, makers, client), strict=True)
        ):
            if isinstance(scored, PolicyFailure):
                if isinstance(maker(), FixedPlans):
                    raise AnalysisError(
                        f"a file of plans fits the trace, but {scored}: plan for this "
                        "trace"
                    ) from None
                failures.append(f"{scored}.")
                scored = []
            rows += [{"file": bench.name, **row} for row in scored]
            if on_run is not None:
                on_run(number + 1, maker().name)
    if not rows:
        why = " ".join(failures) or (
            f"the networks {', '.join(bench.networks)} serve none of their families: "
            "give one with --network"
        )
        raise AnalysisError(f"no policy could be evaluated: {why}")
    compute = ", and compute" * (scope.token_s + scope.other_s > 0)
    for name in dict.fromkeys(row["network"] for row in rows):
        network = bench.used.get(name, bench.networks[name])
        about[name] = {"rates": network.described()}
        about[name]["reference"] = f"{network.reference()}{compute}"
    data: dict[str, Any] = {"phase": phase, "completion": scope.name, "runs": []}
    for name, bench in served:
        read = bench.series(UNITS[rows[0]["family"]])
        points = read.points(most)
        first, last = (int(read.iterations[p]) for p in (points[0], points[-1]))
        several = f"{Path(name).name}: " * (len(served) > 1)
        beyond = list[str]()
        if isinstance(bench.trace, Trace):
            newest = int(bench.trace.iterations[-1])
            beyond = beyond_last(conditions.iterations, newest)
            beyond += [EQUAL_SHARES] * (ep is not None)
        notes += [several + note for note in (*read.notes, *beyond)]
        data["runs"].append(
            {
                "file": name,
                "iterations": (first, last),
                "layers": sorted({number_of(layer) for layer in read.layers}),
                "ranks": len({r for members in read.ranks.values() for r in members})
                or max(truth.shape[1] for truth in read.layers.values()),
            }
        )
    if hold >= len(points):
        notes.append(
            f"plans are made once, as --hold {hold} covers all {len(points)} iterations"
        )
    data["failures"] = failures
    span = max(*conditions.ages, hold)
    return answer(rows, about, data=data, span=span, notes=[*notes, *failures])


def _scores(
    bench: Bench, asked: Sequence[Any], makers: Sequence[Maker], client: Any
) -> Iterator[list[Row] | PolicyFailure]:
    """Yield the rows of each policy, computed here or on a dask cluster."""
    if client is None:
        yield from (_scored(bench, maker) for maker in makers)
        return
    if not all(isinstance(name, str) for name in asked):
        raise AnalysisError(
            "a cluster evaluates policies by name or file.py:Class: leave out --dask, "
            "or plans"
        )
    file = str(Path(bench.name).resolve())
    tasks = [
        client.submit(_task, file, name, bench.conditions, pure=False) for name in asked
    ]
    for task in tasks:
        yield task.result()
        task.release()


def _scored(bench: Bench, maker: Maker) -> list[Row] | PolicyFailure:
    try:
        return bench.scores(maker)
    except PolicyFailure as failure:
        return failure


def _task(file: str, name: str, conditions: Conditions) -> list[Row] | PolicyFailure:
    """Evaluate a policy on a trace file that all workers share."""
    with Trace.open(file) as trace:
        return _scored(Bench(trace, conditions), policy_maker(name))
