"""``moetraffic anonymize``: a trace without names of hosts, users and programs."""

from __future__ import annotations

from pathlib import Path

from moetraffic.cli.output import Printing, printed
from moetraffic.files import validate_outputs
from moetraffic.report.console.options import (
    Force,
    TraceFile,
    trace_output,
)
from moetraffic.tables import Table
from moetraffic.trace import Trace


@printed(("texts",))
def anonymize(
    trace: TraceFile,
    output: Path = trace_output(...),
    force: Force = False,
    *,
    printing: Printing,
) -> None:
    """Remove host names, commands, paths and free text from a trace to share it.

    Nodes become node0, node1 ...; labels that moetraffic does not know become label0,
    label1 ... All numbers are kept. Read the texts that remain with --tables.

    Example: moetraffic anonymize run.h5 -o shared.h5
    """
    validate_outputs((output,), (trace,), force=force)
    from moetraffic.interop.anonymization import anonymize as anonymized

    with Trace.open(trace) as opened:
        found = anonymized(opened)
        found.trace.save(output, force=force)
    printing.present(
        {
            "file": str(output),
            "removed": list(found.removed),
            "texts": list(found.texts),
        },
        f"Removed: {'; '.join(found.removed) or 'nothing'}. Kept: all numbers (sizes, "
        f"counts, times, losses, layout, seed) and {len(found.texts)} texts of a fixed "
        "vocabulary.",
        parts={"texts": [Table(rows=[(text,) for text in found.texts])]},
        written=(output,),
    )
