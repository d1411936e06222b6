"""Dry run: programs, groups, streams, memory and lower bound of a planned replay.

Nothing is sent, no rank is started, and torch is not imported.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from moetraffic.arrays import Float64
from moetraffic.errors import ReplayError
from moetraffic.files import validate_output, write_text
from moetraffic.patterns.bandwidth.measurements import read_table
from moetraffic.replay.plan.program import KINDS, Plan, Program
from moetraffic.replay.request import Request
from moetraffic.report.console.terminal import Paper
from moetraffic.tables import Table
from moetraffic.trace.trace import Trace
from moetraffic.units import byte_size, duration, rank_span

from .baselines import Estimate, by_hockney, by_table, parse_hockney
from .lower_bound import (
    described,
    operation_bounds_s,
    pass_bound_s,
    requested_network,
)
from .summary_tables import counts

TITLES = {
    "network_bytes": "between ranks",
    "by_stream": "operations by stream",
    "waited_for": "waits",
}
"""Columns that are not named as their field."""

_SHOWN = 16  # rows of a table; all are in the file


@dataclass(frozen=True, kw_only=True)
class PassBound:
    """Lower bounds on the duration of a pass and of its operations, s."""

    operation_s: Float64  # [n] of each operation by itself
    pass_s: float
    network: str


@dataclass(frozen=True, kw_only=True)
class DryRun:
    """Replay plan of all ranks with a lower bound and estimates of its duration."""

    plan: Plan
    bound: PassBound | None
    estimates: tuple[Estimate, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return a summary for JSON; sizes are in bytes, ``_s`` in seconds."""
        plan, b = self.plan, self.bound
        used = np.bincount(plan.group, minlength=len(plan.groups)).tolist()
        kinds = np.bincount(plan.kind, minlength=len(KINDS)).tolist()
        return {
            "kind": "moetraffic replay dry run",
            "source": plan.source,
            "world": plan.world,
            "digest": plan.digest,
            "iterations": len(np.unique(plan.iteration)),
            "first_iteration": int(plan.iteration.min()),
            "last_iteration": int(plan.iteration.max()),
            "operations": {k: n for k, n in zip(KINDS, kinds, strict=True) if n},
            "total_bytes": int(plan.total_bytes.sum()),
            "network_bytes": int(plan.network_bytes.sum()),
            "left_out": dict(plan.left_out),
            "notes": list(plan.notes),
            "groups": [
                {"group": g, "ranks": list(plan.groups[g]), "operations": n}
                for g, n in enumerate(used)
                if n
            ],
            "streams": [_stream(plan, s) for s in range(len(plan.streams))],
            "ranks": [_rank(plan, p) for _, p in sorted(plan.programs.items())],
            "lower_bound": None
            if b is None
            else {"network": b.network, "pass_s": b.pass_s},
            "estimates": [
                {"source": e.source, "total_s": e.total_s, "notes": list(e.notes)}
                for e in self.estimates
            ],
        }

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield the programs of all ranks, one row per operation in issue order.

        Bytes of ``sends`` and ``receives`` are to and from each rank of ``ranks``, for
        all-to-alls; times are microseconds, None if unknown.
        """
        for rank, program in sorted(self.plan.programs.items()):
            for n in range(len(program)):
                yield self._row(rank, program, n)

    def _row(self, rank: int, program: Program, n: int) -> dict[str, Any]:
        plan, operation = self.plan, int(program.operation[n])
        site = plan.sites[int(plan.site[operation])]
        row = {
            "rank": rank,
            "place": n,
            "operation": operation,
            "iteration": int(plan.iteration[operation]),
            "layer": _known(site.layer),
            "name": site.phase or site.label or site.operation,
            "kind": KINDS[program.kind[n]],
            "stream": plan.streams[program.stream[n]],
            "group": int(program.group[n]),
            "ranks": list(plan.groups[program.group[n]]),
            "sender": _known(plan.sender[operation]),
            "receiver": _known(plan.receiver[operation]),
            "bytes": int(plan.size[operation]),
            "send_bytes": int(program.send_size[n]),
            "receive_bytes": int(program.receive_size[n]),
            "sends": program.sends(n).tolist(),
            "receives": program.receives(n).tolist(),
            "after": _known(program.after[n]),
            "waits": bool(program.waits[n]),
            "gap_us": _us(program.gap_ns[n]),
            "due_us": _us(program.due_ns[n]),
        }
        if self.bound is not None:
            row["bound_us"] = float(self.bound.operation_s[operation]) * 1e6
        for number, estimate in enumerate(self.estimates):
            row[f"estimate{number}_us"] = float(estimate.operation_s[operation]) * 1e6
        return row

    def tables(self) -> list[Table]:
        """Build terminal tables."""
        found = self.as_dict()
        groups = [{**g, "ranks": rank_span(g["ranks"])} for g in found["groups"]]
        return [
            self._summary(found),
            _records("streams", found["streams"]),
            _records("groups", groups),
            _records(
                "ranks",
                found["ranks"],
                "sent: rank-local bytes included; waits: operations whose end the next "
                "one of their stream waits for",
            ),
        ]

    def _summary(self, found: dict[str, Any]) -> Table:
        span = f"{found['first_iteration']} to {found['last_iteration']}"
        rows: list[tuple[str, object]] = [
            ("ranks", found["world"]),
            ("iterations", f"{found['iterations']}, {span}"),
            ("operations", counts(found["operations"])),
            (
                "bytes",
                f"{byte_size(found['total_bytes'])}, "
                f"{byte_size(found['network_bytes'])} of them between ranks",
            ),
        ]
        if found["left_out"]:
            rows.append(("not replayed", counts(found["left_out"])))
        rows += [("note", note) for note in found["notes"]]
        rows.append(
            (
                "order",
                "operations of a stream run one after the other, streams overlap; on "
                "each rank an iteration begins when the previous one has ended",
            )
        )
        b = self.bound
        if b is not None:
            least = f"{duration(b.pass_s)} a pass, on {b.network}"
            rows.append(("lower bound", least))
        for e in self.estimates:
            rows.append(("estimate", f"{duration(e.total_s)} ({e.source})"))
            rows += [("", note) for note in e.notes]
        return Table(title=f"dry run of {found['source']}", rows=rows)

    def save(self, path: Path) -> None:
        """Write the programs of all ranks as CSV.

        Lists are separated by blanks; unknown values are empty.

        Raises
        ------
        ReplayError
            If the file cannot be written.
        """
        rows, out = list(self.rows()), io.StringIO()
        writer = csv.DictWriter(out, rows[0] if rows else (), lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow({name: _cell(value) for name, value in row.items()})
        write_text(path, out.getvalue(), error=ReplayError)


def estimate_plan(
    trace: Trace, plan: Plan, request: Request, *, hockney: str = ""
) -> DryRun:
    """Compute the lower bound and estimates of the duration of a replay plan.

    ``hockney`` is alpha and beta of Hockney's model, "10us,50GB/s", or "" for none.

    Raises
    ------
    MoetrafficError
        If the network, or the table, does not fit the plan.
    """
    bound, estimates = None, []
    hosts = np.zeros(plan.world, np.int64)
    network = requested_network(request, plan.world)
    if network is not None:
        hosts = network.slots // network.hosts.ranks
        rescaled = request.rescaled(trace)
        bound = PassBound(
            operation_s=operation_bounds_s(rescaled, plan, network),
            pass_s=pass_bound_s(rescaled, plan, network),
            network=described(network),
        )
    if hockney:
        estimates.append(by_hockney(plan, parse_hockney(hockney)))
    if request.bandwidth is not None:
        table = read_table(request.bandwidth)
        estimates.append(by_table(plan, table, str(request.bandwidth), hosts))
    return DryRun(plan=plan, bound=bound, estimates=tuple(estimates))


def print_dry_run(
    request: Request,
    *,
    nproc: int | None = None,
    hockney: str = "",
    program: Path | None = None,
    as_json: bool = False,
) -> None:
    """Print the dry run of a replay, and write its programs to a file if requested.

    ``hockney`` is as in :func:`estimate_plan`.

    Raises
    ------
    MoetrafficError
        If the request cannot be planned, an option is invalid, or the file cannot be
        written.
    """
    if hockney:
        parse_hockney(hockney)
    if program is not None:
        if program.suffix != ".csv":
            raise ReplayError(
                f"a program is written as CSV, not {program.name!r}: name a .csv file"
            )
        validate_output(program, force=request.force, error=ReplayError)
    with Trace.open(request.trace) as trace:
        request.validate_execution(trace)
        plan = request.plan(trace, world=nproc)
        found = estimate_plan(trace, plan, request, hockney=hockney)
    if program is not None:
        found.save(program)
    if as_json:
        print(json.dumps(found.as_dict()))
    else:
        Paper().show(found.tables())


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
    after = program.after
    crossing = (after >= 0) & (program.stream[after] != program.stream)
    return {
        "rank": program.rank,
        "operations": len(program),
        "sent_bytes": int(plan.rank_bytes[program.rank]),
        "send_buffer_bytes": send,
        "receive_buffer_bytes": receive,
        "by_stream": dict(Counter(plan.streams[s] for s in program.stream.tolist())),
        "waited_for": int(np.count_nonzero(program.waits)),
        "after_another_stream": int(np.count_nonzero(crossing)),
    }


def _records(title: str, records: list[dict[str, Any]], *notes: str) -> Table:
    """Build a table of the first records of a list."""
    names = list(records[0]) if records else []
    rest = len(records) - _SHOWN
    return Table(
        title=title,
        columns={
            TITLES.get(n, n.replace("_bytes", "").replace("_", " ")): "bytes"
            if n.endswith("_bytes")
            else ""
            for n in names
        },
        rows=[
            [_counted(v) if isinstance(v, dict) else v for v in record.values()]
            for record in records[:_SHOWN]
        ],
        notes=[*([f"and {rest} more: see --program FILE"] if rest > 0 else []), *notes],
    )


def _counted(numbers: dict[str, int]) -> str:
    return ", ".join(f"{n} {name}" for name, n in numbers.items())


def _known(value: Any) -> int | None:
    return int(value) if value >= 0 else None


def _us(value_ns: Any) -> float | None:
    return int(value_ns) / 1e3 if value_ns >= 0 else None


def _cell(value: Any) -> Any:
    """Format a value as one cell of CSV."""
    if isinstance(value, list):
        return " ".join(map(str, value))
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return value
