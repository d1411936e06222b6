"""Traces with other times."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moetraffic.arrays import Int64
from moetraffic.trace import Trace
from moetraffic.trace.panel import ArrayPanel


def with_times(
    trace: Trace, times: Mapping[str, Mapping[int, Int64]], **parts: Any
) -> Trace:
    """Copy a trace with other times of calls, which are not those of its ``runs``.

    ``times["issue"][W]`` are ``[calls of W ranks, W]`` ns; other parts are replaced.
    """
    panels = dict(trace.panels)
    for column, by_width in times.items():
        for width, array in by_width.items():
            panels[f"call_{width}/{column}"] = ArrayPanel(array)
    return trace.replaced(**({"panels": panels, "runs": None} | parts))
