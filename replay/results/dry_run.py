"""What a replay would do: each rank's program, groups, streams, memory, lower bounds.

Nothing is sent, no rank is started, and torch is not imported.
"""

from __future__ import annotations

import csv
import io
import json
import math
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from moetraffic.errors import ReplayError
from moetraffic.fabric.named import load_fabric
from moetraffic.patterns.measurements import read_table
from moetraffic.replay.plan.matrices import Scaled
from moetraffic.replay.plan.program import KINDS, Plan, Program
from moetraffic.replay.request import Request
from moetraffic.report.terminal import Paper
from moetraffic.trace.hdf5.durable import validate_output, write_whole
from moetraffic.trace.trace import Trace
from moetraffic.units import (
    byte_size,
    duration,
    rank_span,
)

from .estimate import Bounds, Estimate, bounds, by_hockney, by_table, parse_hockney

FORMATS = (".json", ".csv")
"""What a program is written as."""

_SHOWN = 16  # ranks and groups of a table; all are in the file


@dataclass(frozen=True, kw_only=True)
class DryRunOptions:
    """What to say of a plan, and where.

    Raises
    ------
    ReplayError
        If an option is no value of its kind, or the file cannot be written.
    """

    capacity: str | None = None  # of a NIC, each way: "400Gbps"
    topology: str | None = None  # a name, or a JSON file, of moetraffic.fabric.named
    bandwidth: Path | None = None  # a table that moetraffic bench wrote
    hockney: str = ""  # "10us,50GB/s"
    program: Path | None = None  # where every rank's rows go
    verbose: bool = False  # show every rank's rows
    force: bool = False

    def __post_init__(self) -> None:
        if self.hockney:
            parse_hockney(self.hockney)
        if self.program is not None:
            if self.program.suffix not in FORMATS:
                raise ReplayError(
                    f"a program is written as {' or '.join(FORMATS)}, not "
                    f"{self.program.name!r}: name a file of these"
                )
            validate_output(self.program, force=self.force, error=ReplayError)


@dataclass(frozen=True, kw_only=True)
class DryRun:
    """A plan with the programs of all ranks, and what it takes at the least."""

    plan: Plan
    bounds: Bounds | None
    estimates: tuple[Estimate, ...]


def estimate_plan(
    trace: Trace, plan: Plan, options: DryRunOptions, scale: Scaled | None = None
) -> DryRun:
    """Work out what a plan takes.

    Parameters
    ----------
    trace
        What the plan was made of.
    plan
        With the programs of all ranks.
    options
        What is known of the network.
    scale
        The one that the plan was made with.

    Raises
    ------
    MoetrafficError
        If the network, or the table, does not suit the plan.
    """
    on = None
    hosts = np.zeros(plan.world, np.int64)
    if options.topology is not None or options.capacity is not None:
        on = load_fabric(
            options.topology or "single",
            plan.world,
            capacity=options.capacity,
        )
        hosts = on.slots // on.topology.hosts.ranks
    estimates = []
    if options.hockney:
        estimates.append(by_hockney(plan, parse_hockney(options.hockney)))
    if options.bandwidth is not None:
        table = read_table(options.bandwidth)
        estimates.append(by_table(plan, table, str(options.bandwidth), hosts))
    return DryRun(
        plan=plan,
        bounds=bounds(trace, plan, on, scale) if on is not None else None,
        estimates=tuple(estimates),
    )


def tell(
    request: Request, options: DryRunOptions, *, nproc: int | None, as_json: bool
) -> None:
    """Print, and write where asked, what a request would do.

    Raises
    ------
    MoetrafficError
        If it could not be done.
    """
    with Trace.open(request.trace) as trace:
        plan = request.plan(trace, world=nproc)
        found = estimate_plan(trace, plan, options, request.scaling.scale(trace))
        if options.program is not None:
            write(found, options.program)
    if as_json:
        print(json.dumps(as_dict(found)))
    else:
        show(found, verbose=options.verbose)


# ---- as rows -----------------------------------------------------------------------


def rows(found: DryRun) -> Iterator[dict[str, Any]]:
    """Every rank's program, a row an operation, in order of issue.

    Bytes of ``sends`` and ``receives`` are to and from each rank of ``ranks``, for
    all-to-alls; times are microseconds, None where not known.
    """
    for rank, program in sorted(found.plan.programs.items()):
        for n in range(len(program)):
            yield _row(found, rank, program, n)


def _row(found: DryRun, rank: int, program: Program, n: int) -> dict[str, Any]:
    plan, operation = found.plan, int(program.operation[n])
    site = plan.sites[int(plan.site[operation])]
    sender, receiver = int(plan.sender[operation]), int(plan.receiver[operation])
    after = int(program.after[n])
    row = {
        "rank": rank,
        "place": n,
        "operation": operation,
        "iteration": int(plan.iteration[operation]),
        "layer": site.layer if site.layer >= 0 else None,
        "name": site.phase or site.label or site.operation,
        "kind": KINDS[program.kind[n]],
        "stream": plan.streams[program.stream[n]],
        "group": int(program.group[n]),
        "ranks": list(plan.groups[program.group[n]]),
        "sender": sender if sender >= 0 else None,
        "receiver": receiver if receiver >= 0 else None,
        "bytes": int(plan.size[operation]),
        "send_bytes": int(program.send_size[n]),
        "receive_bytes": int(program.receive_size[n]),
        "sends": program.sends(n).tolist(),
        "receives": program.receives(n).tolist(),
        "after": after if after >= 0 else None,
        "waits": bool(program.waits[n]),
        "gap_us": _us(program.gap_ns[n]),
        "due_us": _us(program.due_ns[n]),
    }
    if found.bounds is not None:
        row["bound_us"] = float(found.bounds.operation_s[operation]) * 1e6
    for number, estimate in enumerate(found.estimates):
        row[f"estimate{number}_us"] = float(estimate.operation_s[operation]) * 1e6
    return row


def _us(value_ns: Any) -> float | None:
    return int(value_ns) / 1e3 if value_ns >= 0 else None


def as_dict(found: DryRun) -> dict[str, Any]:
    """The plan in short, for JSON: bytes are bytes, ``_s`` seconds."""
    plan, b = found.plan, found.bounds
    used = np.bincount(plan.group, minlength=len(plan.groups))
    told: dict[str, Any] = {
        "kind": "moetraffic replay dry run",
        "source": plan.source,
        "world": plan.world,
        "digest": plan.digest,
        "iterations": len(np.unique(plan.iteration)),
        "first_iteration": int(plan.iteration.min()),
        "last_iteration": int(plan.iteration.max()),
        "operations": {
            KINDS[k]: int(n)
            for k, n in enumerate(np.bincount(plan.kind, minlength=len(KINDS)))
            if n
        },
        "total_bytes": int(plan.total_bytes.sum()),
        "network_bytes": int(plan.network_bytes.sum()),
        "left_out": dict(plan.left_out),
        "notes": list(plan.notes),
        "groups": [
            {"group": g, "ranks": list(plan.groups[g]), "operations": int(n)}
            for g, n in enumerate(used.tolist())
            if n
        ],
        "streams": [_stream(plan, s) for s in range(len(plan.streams))],
        "ranks": [_rank(plan, p) for _, p in sorted(plan.programs.items())],
        "bounds": None
        if b is None
        else {
            "topology": b.topology,
            "whole_s": b.whole_s,
            "iterations_s": b.iterations_s,
            "operations_s": b.operations_s,
        },
        "estimates": [
            {"source": e.source, "total_s": e.total_s, "notes": list(e.notes)}
            for e in found.estimates
        ],
    }
    return told


def _stream(plan: Plan, stream: int) -> dict[str, Any]:
    mine = plan.stream == stream
    return {
        "stream": plan.streams[stream],
        "operations": int(mine.sum()),
        "network_bytes": int(plan.network_bytes[mine].sum()),
        "largest_bytes": int(plan.largest_bytes[mine].max(initial=0)),
    }


def _rank(plan: Plan, program: Program) -> dict[str, Any]:
    send, receive = program.buffer_bytes
    return {
        "rank": program.rank,
        "operations": len(program),
        "sent_bytes": int(plan.rank_bytes[program.rank]),
        "send_buffer_bytes": send,
        "receive_buffer_bytes": receive,
        "by_stream": dict(
            Counter(plan.streams[s] for s in program.stream.tolist()).items()
        ),
        "waited_for": int(np.count_nonzero(program.waits)),
        "after_another_stream": _crossings(program),
    }


def _crossings(program: Program) -> int:
    """Operations that wait for one of another stream."""
    of = program.after
    return int(np.count_nonzero((of >= 0) & (program.stream[of] != program.stream)))


# ---- for people --------------------------------------------------------------------


def show(found: DryRun, *, verbose: bool) -> None:
    """Tables on stdout; ``verbose`` adds every rank's rows."""
    told = as_dict(found)
    # a log or a pipe has no width of its own: tables keep theirs
    console = Paper(highlight=False, width=None if sys.stdout.isatty() else 120)
    kinds = ", ".join(f"{n} {name}" for name, n in told["operations"].items())
    head = Table(title=f"dry run of {told['source']}", title_justify="left", box=None)
    head.add_column(style="bold")
    head.add_column(overflow="fold")
    head.add_row("ranks", str(told["world"]))
    head.add_row(
        "iterations",
        f"{told['iterations']}, {told['first_iteration']} to {told['last_iteration']}",
    )
    head.add_row("operations", kinds)
    head.add_row(
        "bytes",
        f"{byte_size(told['total_bytes'])}, of these "
        f"{byte_size(told['network_bytes'])} between ranks",
    )
    if told["left_out"]:
        others = ", ".join(f"{n} {name}" for name, n in told["left_out"].items())
        head.add_row("left out", others)
    for note in told["notes"]:
        head.add_row("", note)
    head.add_row(
        "order",
        "operations of a stream one after the other, streams overlap; an iteration "
        "begins on a rank when all of the one before has ended there",
    )
    b = found.bounds
    if b is not None:
        head.add_row(
            "lower bounds",
            f"{duration(b.whole_s)} if all overlaps, {duration(b.iterations_s)} if "
            f"iterations do not, {duration(b.operations_s)} if operations of a stream "
            f"do not, on a {b.topology}",
        )
    for e in found.estimates:
        head.add_row("estimate", f"{duration(e.total_s)} ({e.source})")
        for note in e.notes:
            head.add_row("", note)
    parts = [head, _table("streams", told["streams"])]
    parts += [
        _table("groups", _spanned(told["groups"])),
        _table("ranks", told["ranks"]),
    ]
    if verbose:
        parts.append(_rows_table(found))
    for part in parts:
        console.print(part, "")


def _spanned(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**g, "ranks": rank_span(g["ranks"])} for g in groups]


def _table(title: str, records: list[dict[str, Any]]) -> Table:
    table = Table(box=None, title=title, title_justify="left")
    for name in records[0] if records else ():
        table.add_column(name.replace("_bytes", "").replace("_", " "), overflow="fold")
    for record in records[:_SHOWN]:
        table.add_row(*(_cell(name, value) for name, value in record.items()))
    if len(records) > _SHOWN:
        table.caption = f"and {len(records) - _SHOWN} more: see --program FILE"
    return table


def _cell(name: str, value: Any) -> str:
    if name.endswith("_bytes"):
        return byte_size(value)
    if isinstance(value, dict):
        return ", ".join(f"{n} {key}" for key, n in value.items())
    return str(value)


def _rows_table(found: DryRun) -> Table:
    table = Table(box=None, title="programs", title_justify="left")
    for name in ("rank", "operation", "kind", "stream", "ranks", "bytes"):
        table.add_column(name)
    timed = found.bounds is not None
    if timed:
        table.add_column("at least", justify="right")
    for row in rows(found):
        cells = [
            str(row["rank"]),
            found.plan.name(row["operation"]),
            row["kind"],
            row["stream"],
            rank_span(row["ranks"]),
            " ".join(map(str, row["sends"])) if row["sends"] else str(row["bytes"]),
        ]
        table.add_row(*cells, *([duration(row["bound_us"] / 1e6)] if timed else []))
    return table


# ---- files -------------------------------------------------------------------------


def write(found: DryRun, path: Path) -> None:
    """Write every rank's rows as CSV, or with the plan in short as JSON.

    Lists are separated by blanks in CSV; what is not known is empty there, and null in
    JSON.

    Raises
    ------
    ReplayError
        If the file cannot be written.
    """
    if path.suffix == ".json":
        text = json.dumps({**as_dict(found), "programs": list(rows(found))})
    else:
        text = _csv(found)
    try:
        write_whole(path, text.encode())
    except OSError as error:
        raise ReplayError(
            f"{path} cannot be written ({error.strerror}): choose another --program"
        ) from None


def _csv(found: DryRun) -> str:
    out = io.StringIO()
    writer: csv.DictWriter[str] | None = None
    for row in rows(found):
        if writer is None:
            writer = csv.DictWriter(out, row, lineterminator="\n")
            writer.writeheader()
        writer.writerow({name: _csv_cell(value) for name, value in row.items()})
    return out.getvalue()


def _csv_cell(value: Any) -> Any:
    if isinstance(value, list):
        return " ".join(map(str, value))
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return value
