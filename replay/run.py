"""Replay a trace on this host: plan it, start and supervise the ranks, give the result.

This process does not import torch, which takes seconds: only the ranks do.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from moetraffic.errors import Interrupted, ReplayError
from moetraffic.files import write_text
from moetraffic.launch.ranks import OnRows, launch
from moetraffic.result import Result
from moetraffic.tables import plain
from moetraffic.trace.iterations import iteration_range, layer_numbers
from moetraffic.trace.model import ALL_TO_ALL
from moetraffic.trace.trace import Trace
from moetraffic.trace.what_if.rescale import Scaling, factor_of, rescale, rescaled
from moetraffic.units import byte_size

from .options import Options, check_backend, on_gpu
from .pace import Pace, parse_pace
from .plan.background import check_comparable, expert_exchanges, traffic_of
from .plan.operations import KINDS, Plan, operations
from .plan.program import Program, program

OnPlan = Callable[[Plan, tuple[str, ...]], None]
"""Gets the plan and what is expected of the replay, in sentences, before it starts."""


def planned(
    options: Options, trace: Trace, nproc: int | None = None
) -> tuple[Trace, Plan]:
    """Plan the replay of a trace: on other ranks, with other bytes, with background.

    Returns the trace that is replayed, read lazily from ``trace``, and its plan.

    Raises
    ------
    MoetrafficError
        If the replay cannot be planned with these options.
    """
    replayed, ledger = trace, None
    if options.scaling:
        replayed, ledger = rescaled(trace, options.scaling)
    world = replayed.meta.world
    if ledger is not None and nproc not in (None, world):
        raise ReplayError(
            f"{trace.name}, mapped to other ranks or bytes, takes {world}, "
            f"but there are {nproc} ranks: start {world} (--nproc {world})"
        )
    chosen = {"iterations": options.iterations, "layers": options.layers}
    plan = operations(
        replayed,
        world=nproc,
        **chosen,  # type: ignore[arg-type]
        dense=options.dense,
        background=traffic_of(options.background, options.model, world)
        if options.background
        else None,
        # NCCL requires one order of launches on communicators that overlap
        in_common=on_gpu(options.backend)
        or (ledger is not None and ledger.in_common_order),
    )
    options.pace.check_plan(plan)
    if options.pairs:
        check_comparable(plan)
    if ledger is None:
        return replayed, plan
    exchanges = plan.occurrence[(plan.kind == KINDS.index(ALL_TO_ALL))]
    notes = ledger.lines(exchanges)
    if options.scaling.dispatcher:
        missing = options.scaling.missing
        captured = operations(
            rescale(trace, Scaling(missing=missing)),
            **chosen,  # type: ignore[arg-type]
            dense=False,
        ).total_bytes.sum()
        before, _, completed, *_ = ledger.total(exchanges)
        ratio = f" ({(before + completed) / captured:.2f}x)" if captured else ""
        notes = (
            f"dispatcher {options.scaling.dispatcher}: "
            f"{byte_size(before + completed)} where {byte_size(int(captured))} were "
            f"captured{' and completed' * bool(missing)}{ratio}",
            *notes,
        )
    return replayed, replace(plan, notes=(*notes, *plan.notes))


def passes(options: Options, program: Program) -> list[tuple[str, Program]]:
    """List the passes of a rank that count operations: name and program of each.

    "verify", "run", and of pairs "beside" background traffic, "alone", and "smallest",
    which has the operations of "beside" at their smallest sizes.
    """
    from .plan.background import pass_order

    listed = [("verify", program)] * options.verifies + [
        ("run", program)
    ] * options.repeat
    alone = expert_exchanges(program) if options.pairs else program
    for number, beside in enumerate(pass_order(options.pairs) if options.pairs else ()):
        if number % 2:  # between the two passes of a pair
            listed.append(("smallest", program))
        listed.append(("beside", program) if beside else ("alone", alone))
    return listed


def counted_name(options: Options, plan: Plan, program: Program, count: int) -> str:
    """Return the name of a rank's operation, counted from 0 over all its passes."""
    for name, of_pass in passes(options, program):
        if count < len(of_pass):
            calls = of_pass.operation
            calls = plan.order(calls) if name == "verify" else calls
            return plan.name(int(calls[count]))
        count -= len(of_pass)
    return ""


def replay(
    options: Options,
    *,
    nproc: int | None = None,
    on_plan: OnPlan | None = None,
    on_rows: OnRows | None = None,
) -> Result:
    """Replay a trace on ranks that are started on this host.

    ``on_rows`` gets the rows of the ranks' board when one of them has changed.

    Raises
    ------
    MoetrafficError
        If the replay cannot start, or if a rank fails: names rank and operation.
    Interrupted
        After SIGINT or SIGTERM, when all ranks have ended.
    """
    from .results.dry_run import dry_run
    from .results.replayed_trace import check_disk_space

    options.check_outputs()
    check_backend(options.backend, here=True)
    with Trace.open(options.trace) as trace:
        options.pace.check_device("cuda" if on_gpu(options.backend) else "cpu")
        replayed, plan = planned(options, trace, nproc)
        expected = dry_run(options, replayed, plan).verdict
        if options.out is not None:
            check_disk_space(trace, options.trace, plan, options.out)
        if on_plan is not None:
            on_plan(plan, expected)

        def name(rank: int, count: int) -> str:
            return counted_name(options, plan, program(replayed, plan, rank), count)

        return start_ranks(
            "moetraffic.replay.rank",
            options.to_json(),
            ranks=plan.world,
            start_s=options.start_timeout_s,
            silence_s=options.silence_s,
            grace_s=options.grace_s,
            on_rows=on_rows,
            namer=name,
        )


def start_ranks(module: str, settings: str, **supervision: Any) -> Result:
    """Run a module as ranks of this host and return the result of rank 0.

    The module gets two files: with ``settings``, and for :func:`write_result`.
    ``supervision`` are options of :func:`moetraffic.launch.ranks.launch`.

    Raises
    ------
    ReplayError
        If a rank failed: names the rank and the operation.
    Interrupted
        If this process was interrupted.
    """
    with tempfile.TemporaryDirectory(prefix="moetraffic-") as folder:
        given, result = Path(folder) / "settings.json", Path(folder) / "result.json"
        given.write_text(settings)
        outcome = launch(["-m", module, str(given), str(result)], **supervision)
        if outcome.interrupted:
            raise Interrupted(
                "interrupted before it was done: start it again", outcome.interrupted
            )
        if not outcome.ok:
            raise ReplayError(outcome.sentence)
        return read_result(result)


def write_result(path: Path, result: Result) -> None:
    """Write a result as JSON, for the parent of the ranks."""
    values = {f.name: getattr(result, f.name) for f in fields(Result)}
    values["tables"] = {name: result.rows(name) for name in result.tables}
    write_text(path, json.dumps(values, default=plain), error=ReplayError)


def read_result(path: Path) -> Result:
    """Read what :func:`write_result` wrote."""
    values = json.loads(path.read_text())
    for name in ("screen", "verdict", "notes"):
        values[name] = tuple(values[name])
    return Result(**values)


def replay_trace(
    trace: Trace | str | Path,
    output: str | Path | None = None,
    *,
    ranks: int | None = None,
    pace: str | Pace = "asap",
    iterations: range | str | None = None,
    layers: Sequence[int] | str | int | None = None,
    **options: Any,
) -> Result:
    """Replay a trace on ranks that are started on this host.

    Parameters
    ----------
    trace
        The trace, or its file.
    output
        Trace to write, with the new times; None for none.
    ranks
        Number of ranks to start; None for that of the trace.
    pace
        When operations are issued: ``"asap"``, ``"captured"``, ``"scaled:0.5"`` or
        ``"open-loop"``.
    iterations, layers
        Iterations and MoE layers to replay, such as ``"10:20"`` and ``[1, 3]``.
    **options
        Other fields of :class:`~moetraffic.replay.options.Options`, such as
        ``backend``, ``verify``, ``repeat``, ``capacity``, ``topology`` and ``force``,
        and of its :class:`~moetraffic.trace.what_if.rescale.Scaling`, such as
        ``fold="2"`` and ``factor="x0.1"``.

    Returns
    -------
    Result
        Bytes, times, bandwidths and the comparison with the captured run.

    Raises
    ------
    MoetrafficError
        If the replay cannot start, or if a rank fails: names rank and operation.

    Examples
    --------
    >>> result = replay_trace("run.h5", "replayed.h5")  # doctest: +SKIP
    >>> result.frame("kinds")  # doctest: +SKIP
    """
    names = {f.name for f in fields(Options)} - {"trace", "out", "scaling"}
    scaled = {f.name for f in fields(Scaling)} - {"ranks"}
    if unknown := sorted(options.keys() - names - scaled):
        raise ReplayError(
            f"an option of a replay is one of {', '.join(sorted(names | scaled))}, not "
            f"{', '.join(unknown)}: choose one"
        )
    scaling = {name: options.pop(name) for name in scaled & options.keys()}
    if isinstance(scaling.get("factor"), str):
        scaling["factor"] = factor_of(scaling["factor"])
    with tempfile.TemporaryDirectory(prefix="moetraffic-") as folder:
        path = Path(folder) / "trace.h5"
        if isinstance(trace, Trace):
            trace.save(path)
        else:
            path = Path(trace)
        made = Options(
            trace=path,
            out=None if output is None else Path(output),
            pace=parse_pace(pace) if isinstance(pace, str) else pace,
            iterations=iteration_range(iterations),
            layers=layer_numbers(layers),
            scaling=Scaling(**scaling),
            **options,
        )
        return replay(made, nproc=ranks)
