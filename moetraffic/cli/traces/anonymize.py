"""``moetraffic anonymize``: a trace without names of hosts, users and programs."""

from __future__ import annotations

from pathlib import Path

from moetraffic.cli.output import present
from moetraffic.report.console.options import (
    AsJson,
    Force,
    TraceFile,
    trace_output,
)
from moetraffic.tables import Table
from moetraffic.trace import Trace
from moetraffic.trace.hdf5.durable import validate_outputs


def anonymize(
    trace: TraceFile,
    output: Path = trace_output(...),
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Remove host names, commands, paths and free text from a trace to share it.

    Nodes become node0, node1 ...; labels that moetraffic does not know become label0,
    label1 ... All numbers are kept. Lists what was removed, and all texts that remain.

    Example: moetraffic anonymize run.h5 -o shared.h5
    """
    validate_outputs((output,), (trace,), force=force)
    from moetraffic.interop.anonymization import anonymize as anonymized

    with Trace.open(trace) as opened:
        found = anonymized(opened)
        found.trace.save(output, force=force)
    rows = [
        ("removed", "; ".join(found.removed) or "nothing"),
        ("kept", "all numbers: sizes, counts, times, losses, layout, seed"),
        ("texts that remain", "; ".join(found.texts)),
    ]
    present(
        {
            "file": str(output),
            "removed": list(found.removed),
            "texts": list(found.texts),
        },
        Table(title=str(output), rows=rows),
        as_json=as_json,
    )
