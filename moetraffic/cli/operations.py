"""Selection of a trace's collective operations."""

from __future__ import annotations

from typing import Annotated

from moetraffic.errors import AnalysisError
from moetraffic.report.console.options import option
from moetraffic.trace import Trace

Operations = Annotated[
    str | None,
    option(
        "Collectives whose traffic is summed, such as all_to_all,all_reduce.",
        shown="all",
    ),
]


def operation_names(trace: Trace, given: str | None) -> list[str] | None:
    """Return the operations that were given, with commas; None for all.

    Raises
    ------
    AnalysisError
        If the trace does not have one.
    """
    known = sorted({s.operation for s in trace.sites} - {"routing"})
    names = None if given is None else given.split(",")
    if names is not None and not set(names) <= set(known):
        raise AnalysisError(
            f"the trace has {', '.join(known)}, but operations are {given!r}: choose "
            "among these"
        )
    return names
