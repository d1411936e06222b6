"""``moetraffic evaluate``: scheduling policies on the traffic of runs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from moetraffic.cli.output import progress
from moetraffic.cli.show import (
    AllTables,
    AsJson,
    Force,
    NoTitle,
    Only,
    Output,
    Plot,
    Width,
    draw,
    show,
)
from moetraffic.errors import AnalysisError
from moetraffic.report.console.options import (
    Ep,
    Iterations,
    Layers,
    Phase,
    option,
    positive_numbers,
    selection,
    trace_argument,
)
from moetraffic.units import byte_count, bytes_per_second, seconds

CIRCUITS, PLACEMENT, PLANS = "Optical circuits", "Expert placement", "Plans"
PACKETS = "Packet networks"


def _or_none(read: Callable[[str], Any]) -> Callable[[str], Any]:
    """Read a rate or a number of bytes; 0 stands for none."""
    return lambda text: 0 if text == "0" else read(text)


def _names(texts: list[str]) -> list[str]:
    names = list(dict.fromkeys(name for text in texts for name in text.split(",")))
    if "" in names:
        raise AnalysisError(
            f"names have one comma between them, but {','.join(texts)!r} has an empty "
            "one: leave out the comma"
        )
    return names


def _help(text: str, panel: str | None = None, **more: Any) -> Any:
    return Option(help=text, rich_help_panel=panel, **more)


def evaluate(
    traces: Annotated[
        list[Path],
        trace_argument("Trace files; several are one table: reruns, or samples."),
    ],
    policy: Annotated[
        list[str] | None,
        _help(
            "Policies, or yours as file.py:Class, with commas or given again; the page "
            "'Scheduling policies' describes all.",
            show_default="those of circuits",
        ),
    ] = None,
    plan: Annotated[
        list[Path] | None,
        _help("JSON file of plans of another program; may be given again."),
    ] = None,
    forecaster: Annotated[
        str,
        _help(
            "Forecasters that policies plan from: shuffled, mean, persistence, ema, "
            "chosen, oracle.",
            PLANS,
        ),
    ] = "persistence,mean,chosen,oracle",
    age: Annotated[
        str,
        _help(
            "Iterations from the newest known exchange to the planned one; several, "
            "with commas: 1,5,20.",
            PLANS,
        ),
    ] = "1",
    hold: Annotated[int, _help("Iterations that a plan serves.", PLANS, min=1)] = 1,
    most: Annotated[
        int, _help("Maximum iterations that are served.", PLANS, min=1)
    ] = 64,
    capacity: Annotated[
        str,
        _help("Rate of a circuit, or of a port of a packet network: 400Gbps, 50GB/s."),
    ] = "400Gbps",
    network: Annotated[
        list[str] | None,
        _help(
            "Packet networks of transmission policies: single, leaf-spine, rails, "
            "fat-tree, torus, dragonfly, or a JSON file, with commas.",
            PACKETS,
            show_default="single",
        ),
    ] = None,
    reconfigure: Annotated[
        str,
        _help("Reconfiguration delay; several, with commas: 10us,15ms.", CIRCUITS),
    ] = "10us",
    packets: Annotated[
        float,
        option(
            ...,
            "Rate of a port to a packet switch beside the circuits; 0: there is none.",
            read=_or_none(bytes_per_second),
            panel=CIRCUITS,
        ),
    ] = "50Gbps",  # type: ignore[assignment]
    circuits: Annotated[
        str,
        _help(
            "Circuits that end at a port at the same time; several, with commas: 1,4.",
            CIRCUITS,
        ),
    ] = "1",
    window: Annotated[
        str,
        _help("Time of the first reconfiguration that compute hides: 5us.", CIRCUITS),
    ] = "0s",
    rest: Annotated[
        str | None,
        _help(
            "How bytes are sent that a plan does not carry: packets or replan.",
            CIRCUITS,
            show_default="packets, or replan without packets",
        ),
    ] = None,
    token_time: Annotated[
        float,
        option(
            ...,
            "Compute time of a token copy: 20ns.",
            read=seconds,
            panel=PLACEMENT,
        ),
    ] = "0s",  # type: ignore[assignment]
    replicas: Annotated[
        int, _help("Slots beyond one for each expert.", PLACEMENT, min=0)
    ] = 0,
    expert_bytes: Annotated[
        int,
        option(
            ...,
            "Size of an expert that is moved to another rank: 88MB; 0: moving is free.",
            read=_or_none(byte_count),
            panel=PLACEMENT,
        ),
    ] = "0",  # type: ignore[assignment]
    nodes: Annotated[int, _help("Nodes of consecutive ranks.", PLACEMENT, min=1)] = 1,
    groups: Annotated[
        int, _help("Groups of experts that share a node.", PLACEMENT, min=1)
    ] = 1,
    ep: Ep = None,
    layers: Layers = None,
    phase: Phase = "dispatch",
    iterations: Iterations = None,
    dask: Annotated[
        str | None,
        Option(help="Evaluate policies on the dask cluster with scheduler HOST:PORT."),
    ] = None,
    plot: Plot = None,
    width: Width = None,
    no_title: NoTitle = False,
    tables: AllTables = False,
    only: Only = None,
    as_json: AsJson = False,
    output: Output = None,
    force: Force = False,
) -> None:
    """Evaluate scheduling policies: plan from the past, serve the true traffic.

    Example: moetraffic evaluate run.h5 --policy rotation,max-weight --age 1,5
    """
    from moetraffic.analysis.cluster import connected
    from moetraffic.policies.evaluate import DEFAULT_POLICIES
    from moetraffic.policies.evaluate import evaluate as evaluated
    from moetraffic.policies.plan_file import plan_file

    names: list[Any] = _names(policy or [*DEFAULT_POLICIES])
    if policy is None and not packets:
        names.remove("packets")
    names += [plan_file(path) for path in plan or []]
    title = f"policies on {len(traces)} traces" if traces[1:] else f"{traces[0].name}"
    client = nullcontext() if dask is None else connected(dask)
    total = len(traces) * len(names)
    with client as cluster, progress(title, total, quiet=as_json) as tick:
        result = evaluated(
            traces,
            names,
            forecasters=forecaster.split(","),
            age=positive_numbers(age, "ages are iterations", "--age 1,5"),
            hold=hold,
            most=most,
            ep=ep,
            **selection(layers, iterations, phase),
            client=cluster,
            on_run=tick,
            capacity=capacity,
            packets=packets,
            reconfigure=reconfigure.split(","),
            circuits=positive_numbers(circuits, "circuits are numbers", "1,4"),
            window=window,
            rest=rest,
            network=_names(network or ["single"]),
            token_s=token_time,
            expert_bytes=expert_bytes,
            replicas=replicas,
            nodes=nodes,
            groups=groups,
        )
    show(result, tables=tables, only=only, as_json=as_json, output=output, force=force)
    if plot is not None:
        from moetraffic.report.views.evaluate import chart

        draw(chart(result), plot, width=width, no_title=no_title, as_json=as_json)
