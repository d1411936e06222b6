"""``moetraffic import``: a trace from files of another tool."""

from __future__ import annotations

import shlex
from collections import Counter
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from moetraffic.cli.show import AllTables, AsJson, Force, Only, show
from moetraffic.files import validate_outputs
from moetraffic.report.console.options import option, trace_output
from moetraffic.result import Result
from moetraffic.trace import ALL_TO_ALL, ROUTING
from moetraffic.trace.merge.merging import Merged
from moetraffic.trace.model import MOST_ROW_BYTES

MOST = 1 << 16
MOST_TOKENS = 1 << 31


def import_(
    files: Annotated[
        list[Path],
        typer.Argument(help="Files of all ranks, also packed with gzip; or folders."),
    ],
    output: Path = trace_output(...),
    format: str | None = option(
        None,
        "Format of the files: profiler, execution-trace, megatron, "
        "nccl-inspector, matrix, csv or chakra.",
        "--from",
        shown="recognized from the files",
    ),
    ranks: int = option(
        0, "Number of ranks of the run.", shown="from the files", min=0, max=MOST
    ),
    experts: int = option(
        0,
        "Number of experts per layer.",
        shown="from the files; for megatron files, the highest expert id + 1",
        min=0,
        max=MOST,
    ),
    k: int | None = option(
        None, "Number of distinct experts of a token.", shown="unknown", min=1, max=MOST
    ),
    tokens: int = option(
        0,
        "Number of tokens of a rank in an iteration.",
        shown="from the rows of dispatch and --k, if both are known",
        min=0,
        max=MOST_TOKENS,
    ),
    row_bytes: int = option(
        0,
        "Bytes of a token copy, for matrix, csv and chakra files.",
        shown="unknown",
        min=0,
        max=MOST_ROW_BYTES,
    ),
    ep: int = option(
        0,
        "Number of expert-parallel ranks, which share the experts evenly, for "
        "megatron files.",
        shown="unknown",
        min=0,
        max=MOST,
    ),
    pp: int | None = option(
        None,
        "Number of pipeline stages, for megatron files.",
        shown="unknown",
        min=1,
        max=MOST,
    ),
    unit: str | None = option(
        None, "Unit of the numbers in a matrix: B, KiB, MiB or GiB.", shown="KiB"
    ),
    keep: bool = option(
        False, "Write the trace even if files contradict each other.", "--keep"
    ),
    force: Force = False,
    tables: AllTables = False,
    only: Only = None,
    as_json: AsJson = False,
) -> None:
    """Convert profiles, execution traces, router traces, matrices or CSV to a trace.

    The bytes that a rank sent must equal those that the others received: otherwise
    the call is named and no trace is written. The opposite, a trace to CSV and other
    formats, is moetraffic export.

    Example: moetraffic import profiles/*.json.gz -o run.h5
    """
    from moetraffic.interop import ImportOptions, import_files

    validate_outputs((output,), files, force=force)
    options = ImportOptions(
        ranks=ranks,
        experts=experts,
        k=k or 0,
        tokens=tokens,
        row_bytes=row_bytes,
        ep=ep,
        pp=pp or 0,
        unit=unit or "",
    )
    name, merged = import_files(files, format=format or "", options=options, keep=keep)
    merged.trace.save(output, force=force)
    result = _read(merged, output, name)
    show(result, as_json=as_json, tables=tables, only=only)


def _read(merged: Merged, output: Path, name: str) -> Result:
    """Say what was read: calls by operation, and what is missing and why."""
    trace, path = merged.trace, shlex.quote(str(output))
    names = ("calls_read", "calls_with_sizes", "calls_with_layer", "calls_with_phase")
    counts: dict[str, Counter[str]] = {}
    for number, site in enumerate(trace.sites):
        calls = np.flatnonzero(trace.occurrences.site == number)
        present = trace.present(calls)
        if min(site.peers) >= 0:
            present = present[:, list(site.peers)]
        sized = int(present.all(axis=1).sum())
        layers, phases = len(calls) * (site.layer >= 0), len(calls) * bool(site.phase)
        numbers = zip(names, (len(calls), sized, layers, phases), strict=True)
        counts.setdefault(site.operation, Counter()).update(dict(numbers))
    iterations = len(trace.iterations)
    verbs = [f"analyze {path} (claims)"]
    if counts.keys() - {ROUTING}:
        verbs.append(f"fabric {path} --capacity 100Gbps (links)")
    if ALL_TO_ALL in counts:
        verbs.append(f"replay {path} -o again.h5")
    meta = trace.meta
    remarks = [remark for remark in (meta.schedule, meta.inferred) if remark]
    return Result(
        verb="import",
        head=f"{output}: {meta.world} rank{'s' * (meta.world > 1)} and {iterations} "
        f"iteration{'s' * (iterations != 1)}, from {name} files",
        tables={
            "calls": [
                {"operation": operation, **{name: of[name] for name in names}}
                for operation, of in counts.items()
            ],
            "missing": [{"missing": what} for what in merged.missing],
        },
        screen=("calls", "missing"),
        captions={
            "calls": "with sizes: of all members; layers and phases: inferred, too"
        },
        verdict=(f"Next: {'; '.join(f'moetraffic {verb}' for verb in verbs)}",),
        notes=(*(f"contradiction: {c}" for c in merged.contradictions), *remarks),
        data={
            "format": name,
            "file": str(output),
            "meta": meta.as_dict(),
            "missing": list(merged.missing),
            "contradictions": list(merged.contradictions),
        },
    )
