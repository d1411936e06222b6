"""Capture, analyze, generate and replay the traffic of mixture-of-experts training.

Each name is imported from its subpackage on first use. The functions take and return
objects; ``docs/command-line.md`` lists the function of every verb.

Trace
    Traffic of one run: ``Trace.open("run.h5")``, ``trace.matrix(...)``,
    ``trace.save(...)``.
Recorder, capture
    Record a training loop, and annotate its layers and phases.
capture_run
    Train a MoE GPT on ranks of this host and record its traffic.
watch_run
    Watch a run while it trains: load, imbalance, bytes and time by layer.
import_trace, export_trace
    Read files of other tools into a trace; write a trace for other tools.
anonymize
    Remove names of hosts, users, paths and programs from a trace.
analyze, compare
    Compute the statistics of a trace, and the distances between two traces.
generate_trace, compare_with_runs
    Generate a synthetic trace, and compare its statistics with those of real runs.
place
    Derive the traffic under another EP degree, placement or expert replication.
estimate
    Estimate the time of a training iteration from its configuration.
load_fabric, circuits
    Load a network for link loads; compute circuit schedules of a trace's all-to-alls.
evaluate
    Evaluate scheduling policies on a trace: plan from the past, serve the truth.
replay_trace
    Send the traffic of a trace again on ranks of this host, verified and timed.
write_report
    Write the HTML report of a trace.
errors
    Module of all exceptions, which derive from ``errors.MoetrafficError``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from moetraffic import capture, errors
    from moetraffic.analysis import analyze, compare
    from moetraffic.analysis.placement import place
    from moetraffic.capture import Recorder
    from moetraffic.capture.training import capture_run
    from moetraffic.fabric.named import load_fabric
    from moetraffic.interop import import_trace
    from moetraffic.interop.anonymize import anonymize
    from moetraffic.interop.write import export_trace
    from moetraffic.policies.evaluate import evaluate
    from moetraffic.policies.schedule import circuits
    from moetraffic.replay import replay_trace
    from moetraffic.report.page import write_report
    from moetraffic.synthetic import generate_trace
    from moetraffic.synthetic.compare import compare_with_runs
    from moetraffic.timemodel import estimate
    from moetraffic.trace import Trace
    from moetraffic.watch import watch_run

__all__ = [
    "Recorder",
    "Trace",
    "__version__",
    "analyze",
    "anonymize",
    "capture",
    "capture_run",
    "circuits",
    "compare",
    "compare_with_runs",
    "errors",
    "estimate",
    "evaluate",
    "export_trace",
    "generate_trace",
    "import_trace",
    "load_fabric",
    "place",
    "replay_trace",
    "watch_run",
    "write_report",
]

_MODULES = {
    "Recorder": "moetraffic.capture",
    "Trace": "moetraffic.trace",
    "analyze": "moetraffic.analysis",
    "anonymize": "moetraffic.interop.anonymize",
    "capture_run": "moetraffic.capture.training",
    "circuits": "moetraffic.policies.schedule",
    "compare": "moetraffic.analysis",
    "compare_with_runs": "moetraffic.synthetic.compare",
    "estimate": "moetraffic.timemodel",
    "evaluate": "moetraffic.policies.evaluate",
    "export_trace": "moetraffic.interop.write",
    "generate_trace": "moetraffic.synthetic",
    "import_trace": "moetraffic.interop",
    "load_fabric": "moetraffic.fabric.named",
    "place": "moetraffic.analysis.placement",
    "replay_trace": "moetraffic.replay",
    "watch_run": "moetraffic.watch",
    "write_report": "moetraffic.report.page",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use, because torch takes seconds to load."""
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    if name in ("capture", "errors"):
        return import_module(f"moetraffic.{name}")
    raise AttributeError(f"module 'moetraffic' has no attribute {name!r}")


def __dir__() -> list[str]:
    """List the public names, including those that are not imported yet."""
    return sorted({*globals(), *__all__})
