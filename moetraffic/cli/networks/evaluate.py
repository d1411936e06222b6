"""``moetraffic evaluate``: scheduling policies on the traffic of runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from moetraffic.cli.output import Printing, printed, progress
from moetraffic.errors import AnalysisError
from moetraffic.files import validate_outputs
from moetraffic.policies.defaults import DEFAULT_PACKETS, DEFAULT_POLICIES
from moetraffic.report.console.options import (
    Force,
    Iterations,
    Layers,
    option,
    picture,
    positive_numbers,
    selection,
    trace_argument,
)
from moetraffic.trace import PHASES, Trace
from moetraffic.units import byte_count, bytes_per_second, seconds

CIRCUITS, PLACEMENT, PLANS = "Optical circuits", "Expert placement", "Plans"
PACKETS, COMPUTE = "Packet networks", "Layers and iterations"
SCOPES = ("exchange", "layer", "iteration")

PARTS = ("scores",)

USUAL = ", ".join(DEFAULT_POLICIES)


def _or_none(read: Callable[[str], Any]) -> Callable[[str], Any]:
    """Read a rate or a number of bytes; 0 stands for none."""
    return lambda text: 0 if text == "0" else read(text)


def _names(given: list[str]) -> list[str]:
    names = list(dict.fromkeys(name for one in given for name in one.split(",")))
    if "" in names:
        raise AnalysisError(
            f"names have one comma between them, but {','.join(given)!r} has an empty "
            "one: leave out the comma"
        )
    return names


ScoresPlot = picture(
    "PNG, PDF or SVG picture of one trace's scores and curves to write."
)


@printed(PARTS, plot=ScoresPlot)
def evaluate(
    traces: Annotated[list[Path], trace_argument("Trace files, one after another.")],
    policy: list[str] | None = option(
        None,
        "Policies, or yours as file.py:Class, with commas or given again; "
        "the page 'Scheduling policies' describes all.",
        "--policy",
        shown=USUAL,
    ),
    plan: list[Path] | None = option(
        None,
        "JSON file of plans of another program; may be given again.",
        "--plan",
    ),
    forecaster: str = option(
        "persistence,mean,chosen,oracle",
        "Forecasters that policies plan from: shuffled, mean, persistence, ema, "
        "chosen, oracle.",
        panel=PLANS,
    ),
    age: int = option(
        1,
        "Iterations from the newest known exchange to the planned one.",
        panel=PLANS,
        min=1,
    ),
    hold: int = option(1, "Iterations that a plan serves.", panel=PLANS, min=1),
    ages: str | None = option(
        None, "Further ages, with commas: 2,5,10.", panel=PLANS, shown="none"
    ),
    most: int = option(64, "Maximum iterations that are served.", panel=PLANS, min=1),
    capacity: float = option(
        "400Gbps",
        "Rate of a circuit, or of a port of a packet network: 400Gbps, 50GB/s.",
        read=bytes_per_second,
    ),
    network: list[str] | None = option(
        None,
        "Packet networks of transmission policies: single, leaf-spine, rails, "
        "fat-tree, torus, or a JSON file, with commas.",
        shown="single",
        panel=PACKETS,
    ),
    optimum: bool = option(
        False,
        "Bound by the optimum of a linear program, not by ports and cuts.",
        "--optimum",
        panel=PACKETS,
    ),
    reconfigure: float = option(
        "10us", "Reconfiguration delay: 10us, 15ms.", read=seconds, panel=CIRCUITS
    ),
    delays: str | None = option(
        None,
        "Further delays, with commas: 1us,100us,25ms.",
        panel=CIRCUITS,
        shown="none",
    ),
    packets: float = option(
        DEFAULT_PACKETS,
        "Rate of a port to a packet switch beside the circuits; 0: there is none.",
        read=_or_none(bytes_per_second),
        panel=CIRCUITS,
    ),
    circuits: int = option(
        1, "Circuits that end at a port at the same time.", panel=CIRCUITS, min=1
    ),
    circuit_counts: str | None = option(
        None,
        "Further numbers of circuits of a port, with commas: 2,4.",
        panel=CIRCUITS,
        shown="none",
    ),
    window: float = option(
        "0s",
        "Time of the first reconfiguration that compute hides: 5us.",
        read=seconds,
        panel=CIRCUITS,
    ),
    rest: str | None = option(
        None,
        "How bytes are sent that a plan does not carry: packets, packets after, "
        "replan or repeat.",
        panel=CIRCUITS,
        shown="packets, or replan without packets",
    ),
    completion: str = option(
        "exchange",
        "What completion times are of: the exchange; the layer (dispatch, experts, "
        "combine); the iteration (both passes of all layers).",
        choices=SCOPES,
        panel=COMPUTE,
    ),
    token_time: float = option(
        "0s", "Compute time of a token copy: 20ns.", read=seconds, panel=COMPUTE
    ),
    other_time: float = option(
        "0s",
        "Forward compute of a layer beside its experts: 2ms.",
        read=seconds,
        panel=COMPUTE,
    ),
    replicas: int = option(
        0, "Slots beyond one for each expert.", panel=PLACEMENT, min=0
    ),
    expert_bytes: int = option(
        "0",
        "Size of an expert that is moved to another rank: 88MB.",
        read=_or_none(byte_count),
        panel=PLACEMENT,
    ),
    nodes: int = option(1, "Nodes of consecutive ranks.", panel=PLACEMENT, min=1),
    groups: int = option(
        1, "Groups of experts that share a node.", panel=PLACEMENT, min=1
    ),
    layers: Layers = None,
    phase: str = option(PHASES[0], f"Phase: {', '.join(PHASES)}."),
    iterations: Iterations = None,
    output: Path | None = option(None, "JSON file to write.", "-o", "--output"),
    force: Force = False,
    *,
    printing: Printing,
) -> None:
    """Evaluate scheduling policies: plan from the past, serve the true traffic.

    Example: moetraffic evaluate run.h5 --policy rotation,max-weight --ages 5,20
    """
    plot, quiet = printing.plot, printing.as_json
    validate_outputs((output, plot), traces, force=force)
    from moetraffic.analysis.exchange import beyond_last
    from moetraffic.policies.catalog import POLICIES, policy_maker
    from moetraffic.policies.evaluation import evaluate as evaluate_policies
    from moetraffic.policies.plan_file import plan_file
    from moetraffic.policies.service.layer import Scope
    from moetraffic.policies.service.networks import networks_of
    from moetraffic.report import policy_scores as report
    from moetraffic.report.policy_verdict import sentences

    plans = [plan_file(path) for path in plan or []]
    names: list[Any] = _names(policy or [*DEFAULT_POLICIES])
    if policy is None and not packets:
        names.remove("packets")
    asked: dict[str, Any] = selection(layers, iterations, phase) | {
        "forecasters": forecaster.split(","),
        "age": age,
        "hold": hold,
        "ages": positive_numbers(ages, "ages are iterations", "--ages 2,5,10"),
        "delays_s": [seconds(part) for part in delays.split(",")] if delays else (),
        "circuits": positive_numbers(
            circuit_counts, "circuits are numbers", "--circuit-counts 2,4"
        ),
        "scope": Scope(
            name=completion,
            token_s=0.0 if completion == "exchange" else token_time,
            other_s=other_time,
        ),
        "most": most,
    }
    own = [policy_maker(n)().name for n in names if n not in POLICIES]
    own += [one().name for one in plans]
    names += plans
    told: list[dict[str, Any]] = []
    verdicts: list[str] = []
    scores: list[Any] = []
    if plot is not None and len(traces) > 1:
        raise AnalysisError(
            f"a picture has the scores of one trace, but there are {len(traces)}: give "
            "one trace, or leave out --plot"
        )
    files = tuple(f"{path.name} " for path in plan or [])
    for path in traces:
        with (
            Trace.open(path) as trace,
            progress(f"policies on {path.name}", len(names), quiet=quiet) as tick,
        ):
            networks = networks_of(
                trace.meta.world,
                capacity=capacity,
                packets=packets,
                reconfigure=reconfigure,
                window=window,
                rest=rest,
                network=_names(network or ["single"]),
                optimum=optimum,
                circuits=circuits,
                token_s=token_time,
                expert_bytes=expert_bytes,
                replicas=replicas,
                nodes=nodes,
                groups=groups,
            )
            found = evaluate_policies(
                trace, names, networks=networks, on_run=tick, **asked
            )
            beyond = beyond_last(asked["iterations"], int(trace.iterations[-1]))
        if unfit := [why for why in found.failures if files and why.startswith(files)]:
            raise AnalysisError(
                f"a file of plans fits the trace, but {unfit[0].rstrip('.')}: plan for "
                "this trace"
            )
        told.append({"file": str(path), **report.as_dict(found)})
        verdicts += [str(path)] * (len(traces) > 1)
        verdicts += sentences(found, own) + [f"{n.capitalize()}." for n in beyond]
        scores += report.tables(found)
    if not verdicts:
        raise AnalysisError("policies are evaluated on traces: name one or more")
    printing.present(
        {"runs": told},
        *verdicts,
        parts={"scores": scores},
        output=output,
        chart=None if plot is None else report.chart(found),
    )
