"""Evaluate policies on a run: completion, ratio to the bound, regret, served share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from moetraffic.arrays import Int64
from moetraffic.errors import AnalysisError
from moetraffic.spelling import nearest
from moetraffic.trace import Trace
from moetraffic.trace.iterations import iteration_range, layer_numbers, names

from .bench import Bench
from .catalog import Maker, policy_maker, validated
from .exchange_series import (
    CHOSEN,
    FORECASTERS,
    MOST_SERVED,
    ExchangeSeries,
    number_of,
)
from .family import FAMILIES
from .harness import PolicyFailure
from .plan_file import FixedPlans
from .scores import CURVES, Evaluation, PolicyScore
from .service.cluster import Cluster
from .service.layer import EXCHANGE, Scope
from .service.networks import described, networks_of, reference
from .service.optical import OpticalSwitch
from .service.packet_network import PacketNetwork
from .trace_series import byte_series, token_series
from .transmission.two_level import with_distinct_tokens

OPTICAL = OpticalSwitch(
    rate_bytes_s=50e9, packet_bytes_s=6.25e9, delay_s=10e-6, rest="packets"
)
"""Circuits of 400 Gbps and a packet switch of 50 Gbps a port: 8 to 1, as in Etalon
(M. K. Mukerjee et al., NSDI 2020)."""

OPTIONS = tuple(networks_of.__kwdefaults__ or ())
"""Options of the command that make networks, as keywords of :func:`evaluate`."""


def evaluate(
    trace: Trace | ExchangeSeries | str | Path,
    policies: Sequence[str | Maker] | str,
    *,
    networks: Mapping[str, Any] | None = None,
    forecasters: Sequence[str] = ("persistence", "mean", CHOSEN, "oracle"),
    age: int = 1,
    hold: int = 1,
    ages: Sequence[int] = (),
    delays_s: Sequence[float] = (),
    circuits: Sequence[int] = (),
    scope: Scope = EXCHANGE,
    phase: str = "dispatch",
    layers: Sequence[int] | str | int | None = None,
    iterations: range | str | None = None,
    most: int = MOST_SERVED,
    seed: int = 0,
    on_run: Callable[[int, str], None] | None = None,
    **options: Any,
) -> Evaluation:
    """Evaluate policies on the exchanges of a run: plan from the past, serve the truth.

    The second half of the run is served, at most the last ``most`` iterations of it;
    settings of forecasters are chosen on the second quarter.

    Parameters
    ----------
    trace
        A run, or series made from elsewhere.
    policies
        Names of :func:`.catalog.policy_maker` (a list, or a text with commas between),
        or functions that make a policy.
    networks
        Name to what a family is served by; None: OPTICAL, and a
        :class:`.service.cluster.Cluster` with ports of 400 Gbps for placements.
    forecasters
        Some of FORECASTERS; "oracle" is added, for the regret.
    age
        Iterations from the newest known exchange to the one that a plan serves first.
    hold
        Iterations that a plan serves.
    ages, delays_s, circuits
        Further ages, and further delays and numbers of circuits of a port of optical
        switches, evaluated one at a time.
    scope
        What completion times are of; a placement's are of a layer at least.
    phase, layers, iterations
        Selection of exchanges.
    most
        Maximum number of iterations that are served.
    seed
        Of the bootstrap and the shuffled control.
    on_run
        Called after each policy with the number done and its name.
    options
        OPTIONS of the command for the networks of a trace, instead of ``networks``:
        texts with a unit, as ``capacity="1Gbps", reconfigure="1us"``, or numbers of
        bytes a second and of seconds.

    Returns
    -------
    Evaluation
        A policy that fails has a sentence in ``failures``; the others go on.

    Raises
    ------
    AnalysisError
        If a name or number is impossible, or no policy could be evaluated.
    """
    if wrong := [name for name in options if name not in OPTIONS]:
        known = {**evaluate.__annotations__, **dict.fromkeys(OPTIONS)}
        of_cluster = wrong[0].replace("_time", "_s")  # token_time is the command's
        if of_cluster in Cluster.__dataclass_fields__:
            raise AnalysisError(
                f"evaluate has no option {wrong[0]!r}: give "
                f"networks={{'cluster': Cluster(rate_bytes_s=125e6, {of_cluster}=...)}}"
                ", from moetraffic.policies.service.cluster"
            )
        raise AnalysisError(
            f"evaluate has no option {wrong[0]!r}: {nearest(wrong[0], known)}choose "
            f"one of its arguments or {', '.join(OPTIONS)}"
        )
    if options and (networks is not None or isinstance(trace, ExchangeSeries)):
        raise AnalysisError(
            f"{', '.join(options)} make the networks of a trace, but networks or a "
            "series are given: leave these options out, and give networks"
        )
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
        for p in (names(policies) if isinstance(policies, str) else policies)
    ]
    by_unit = {FAMILIES[maker().family].unit for maker in makers}
    if isinstance(trace, ExchangeSeries):
        series = dict.fromkeys(by_unit, trace)
    else:
        chosen: dict[str, Any] = {
            "layers": layer_numbers(layers),
            "iterations": iteration_range(iterations),
        }
        run = Trace.open(trace)
        if options:
            networks = networks_of(run.meta.world, **options)
        series = {u: READERS[u](run, phase=phase, **chosen) for u in by_unit}
    if networks is None:
        networks = {"optical": OPTICAL, "cluster": Cluster(rate_bytes_s=50e9)}
    bench = Bench(
        series=series,
        forecasters=tuple(dict.fromkeys((*forecasters, "oracle"))),
        hold=hold,
        scope=scope,
        most=most,
        seed=seed,
    )
    cases = [
        _Case(curve="", age=age),
        *(_Case(curve="age", age=other) for other in ages),
        *(
            _Case(curve="delay", age=age, change={"delay_s": delay})
            for delay in delays_s
        ),
        *(
            _Case(curve="circuits", age=age, change={"circuits": number})
            for number in circuits
        ),
    ]
    scores: dict[str, list[PolicyScore]] = {name: [] for name in ("", *CURVES)}
    failures: list[str] = []
    for number, maker in enumerate(makers):
        family = FAMILIES[maker().family]
        try:
            for name, network in networks.items():
                if not isinstance(network, family.network):
                    continue
                _check_fits(name, network, series[family.unit])
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
                for case in cases:
                    if case.change and not isinstance(network, OpticalSwitch):
                        continue
                    on = replace(network, **case.change) if case.change else network
                    scores[case.curve] += bench.scores(
                        *(maker, family, name, on), age=case.age
                    )
        except PolicyFailure as failure:
            failures.append(f"{failure}.")
        if on_run is not None:
            on_run(number + 1, maker().name)
    if not scores[""]:
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
    once = f"plans are made once, as --hold {hold} covers all {len(points)} iterations"
    used = dict.fromkeys(s.network for s in scores[""])
    compute = scope.token_s + scope.other_s > 0
    return Evaluation(
        run=one.name,
        phase=one.phase,
        completion=scope.name,
        iterations=(int(one.iterations[points[0]]), int(one.iterations[points[-1]])),
        layers=tuple(dict.fromkeys(map(number_of, one.layers))),
        ranks=len({r for of in one.ranks.values() for r in of})
        or max(truth.shape[1] for truth in one.layers.values()),
        scores=tuple(scores[""]),
        **{f"by_{curve}": tuple(scores[curve]) for curve in CURVES},
        failures=tuple(failures),
        informed=_informed(makers, one, points),
        notes=one.notes + (once,) * (hold >= len(points)),
        networks={name: text for name in used if (text := described(networks[name]))},
        bounds={name: reference(networks[name], compute=compute) for name in used},
    )


@dataclass(frozen=True, kw_only=True)
class _Case:
    """One condition of an evaluation; its curve has the others."""

    curve: str  # one of CURVES, or "" for the main condition
    age: int
    change: dict[str, Any] = field(default_factory=dict)  # of an optical switch


def _informed(
    makers: Sequence[Maker], series: ExchangeSeries, points: Int64
) -> dict[str, str]:
    """Name the files of plans that were made from exchanges of the run they serve.

    A run is known by its digest, or by its file name where one has no digest.
    """
    first, last = (int(series.iterations[at]) for at in (points[0], points[-1]))
    run, found = Path(series.name).name, {}
    for policy in (maker() for maker in makers):
        if not isinstance(policy, FixedPlans):
            continue
        known = policy.digest and series.digest
        same = policy.digest == series.digest if known else policy.run == run
        if not same:
            continue
        begin, end = policy.planned or (0, 0)
        both = range(max(begin, first), min(end, last + 1))
        if both:
            found[policy.name] = (
                f"planned from iterations {begin}:{end}, of which {both.start}:"
                f"{both.stop} are served"
            )
    return found


def _check_fits(name: str, network: Any, series: ExchangeSeries) -> None:
    """Raise AnalysisError if a network has no place for ranks or experts of the run."""
    if isinstance(network, Cluster):
        for _, ranks, experts in (truth.shape for truth in series.layers.values()):
            if (experts + network.replicas) % ranks:
                least = -experts % ranks
                raise AnalysisError(
                    f"{ranks} ranks hold equal numbers of the {experts} experts and "
                    f"the replicas, but --replicas {network.replicas} makes "
                    f"{experts + network.replicas} slots: give {least}, "
                    f"{least + ranks} or {least + 2 * ranks}"
                )
    if not isinstance(network, PacketNetwork):
        return
    for layer, truth in series.layers.items():
        ranks = series.ranks.get(layer, range(truth.shape[1]))
        if max(ranks) >= len(network.slots):
            raise AnalysisError(
                f"the network {name} has slots for ranks 0 to "
                f"{len(network.slots) - 1}, but layer {number_of(layer)} uses rank "
                f"{max(ranks)}: give a larger one"
            )


READERS: Mapping[str, Callable[..., ExchangeSeries]] = {
    "bytes": byte_series,
    "tokens": token_series,
}
"""Readers of a trace by the unit of their series."""
