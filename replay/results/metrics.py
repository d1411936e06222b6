"""Prometheus metrics of a replay for the node exporter, and its report files.

The textfile collector reads every ``*.prom`` in a folder periodically, so the file is
replaced atomically, also while the replay runs.  Names end in their unit, as Prometheus
requires: ``_seconds``, ``_bytes``, ``_total`` for counters.

References
----------
Prometheus, "Exposition formats", text format 0.0.4; "Metric and label naming".
node_exporter, README, "Textfile Collector".
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from moetraffic.replay.request import Request

from .fidelity import Fidelity
from .output import write_text
from .progress import Progress
from .records import to_json
from .result import Replay

PREFIX = "moetraffic_replay"

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class Metric:
    """Prometheus metric: name, type, help text and samples."""

    name: str  # without PREFIX, with its unit
    kind: str  # "gauge" or "counter"
    help: str
    samples: tuple[tuple[Labels, float], ...]


def gauge(name: str, help: str, *samples: tuple[Labels, float]) -> Metric:
    """Create a gauge: a Prometheus metric that may rise and fall."""
    return Metric(name=name, kind="gauge", help=help, samples=samples)


def exposition(metrics: Iterable[Metric], common: Mapping[str, str]) -> str:
    """Format metrics in Prometheus' text format.

    Parameters
    ----------
    metrics
        Metrics with distinct names; samples that are not finite are left out.
    common
        Labels of every sample.

    Examples
    --------
    >>> print(exposition([gauge("ranks", "Ranks.", ((), 2.0))], {"backend": "gloo"}))
    # HELP moetraffic_replay_ranks Ranks.
    # TYPE moetraffic_replay_ranks gauge
    moetraffic_replay_ranks{backend="gloo"} 2.0
    <BLANKLINE>
    """
    lines = []
    for metric in metrics:
        finite = [(own, v) for own, v in metric.samples if math.isfinite(v)]
        if not finite:
            continue
        name = f"{PREFIX}_{metric.name}"
        help_text = metric.help.replace("\\", "\\\\").replace("\n", "\\n")
        lines += [f"# HELP {name} {help_text}", f"# TYPE {name} {metric.kind}"]
        for own, value in finite:
            labels = ",".join(
                f'{label}="{_escaped(text)}"'
                for label, text in {**common, **dict(own)}.items()
            )
            lines.append(f"{name}{{{labels}}} {value!r}")
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def write_metrics(
    path: Path, metrics: Iterable[Metric], common: Mapping[str, str]
) -> None:
    """Write metrics to a file in Prometheus' text format, atomically.

    Raises
    ------
    ReplayError
        If the file cannot be written.
    """
    write_text(path, exposition(metrics, common), mode=0o644)  # exporter: other user


def progress_metrics(progress: Progress) -> list[Metric]:
    """Create metrics of each rank's progress in a running replay."""
    at = (("stage", progress.stage),)

    def each(name: str) -> list[tuple[Labels, float]]:
        return [
            ((*at, ("rank", str(rank))), float(getattr(own, name)))
            for rank, own in enumerate(progress.of_rank)
        ]

    return [
        Metric(
            name="rank_operations_total",
            kind="counter",
            help="Operations that a rank has done in this stage.",
            samples=tuple(each("done")),
        ),
        gauge(
            "rank_operations_planned",
            "Operations that a rank has to do in this stage.",
            *each("of"),
        ),
        gauge(
            "stage_elapsed_seconds",
            "Time since the stage began.",
            (at, progress.elapsed_s),
        ),
        gauge("running", "1 while the replay runs, 0 when it has ended.", ((), 1.0)),
    ]


def result_metrics(replay: Replay) -> list[Metric]:
    """Create metrics from the result of a replay that has ended."""
    s = replay
    spread = {"0.5": s.time_us.p50, "0.9": s.time_us.p90, "0.99": s.time_us.p99}
    metrics = [
        gauge("running", "1 while the replay runs, 0 when it has ended.", ((), 0.0)),
        gauge("ranks", "Ranks that replayed.", ((), float(s.ranks))),
        gauge("operations", "Operations replayed.", ((), float(s.operations))),
        gauge(
            "verified",
            "1 if every size and byte was checked in a pass before.",
            ((), float(s.verified == "full")),
        ),
        gauge("wall_seconds", "First call to last end of a rank.", ((), s.wall_s)),
        gauge(
            "moved_bytes",
            "Bytes of all operations, also those of a rank to itself.",
            ((), float(s.total_bytes)),
        ),
        gauge("network_bytes", "Bytes between ranks.", ((), float(s.network_bytes))),
        gauge(
            "rank_sent_bytes",
            "Bytes that a rank sent.",
            *(((("rank", str(r)),), float(n)) for r, n in enumerate(s.rank_bytes)),
        ),
        gauge(
            "operation_time_seconds",
            "Time of an operation, of its slowest member, by quantile.",
            *(((("quantile", q),), us / 1e6) for q, us in spread.items()),
        ),
        gauge(
            "operation_time_max_seconds",
            "Time of the slowest operation.",
            ((), s.time_us.max / 1e6),
        ),
    ]
    if s.total_busbw_gbs is not None:
        metrics.append(
            gauge(
                "busbw_bytes_per_second",
                "Busiest links' bytes over the operations' time.",
                ((), s.total_busbw_gbs * 1e9),
            )
        )
    if s.straggler is not None:
        metrics.append(
            gauge(
                "straggler_share_ratio",
                "Share of operations in which the straggler arrived last.",
                ((("rank", str(s.straggler)),), s.straggler_share),
            )
        )
    return metrics + (_fidelity(s.fidelity) if s.fidelity is not None else [])


def _fidelity(found: Fidelity) -> list[Metric]:
    baselines = {
        "over_captured": "the captured run's time",
        "over_bound": "the network's lower bound",
        "over_model": "the table of measurements",
    }
    metrics = [
        gauge(
            f"time_{name}_ratio",
            f"Time of the operations over {what}; value and ends of its interval.",
            *(
                (
                    (("by", part.by), ("part", part.label), ("of", end)),
                    getattr(getattr(part, name), end),
                )
                for part in found.parts
                for end in ("value", "low", "high")
            ),
        )
        for name, what in baselines.items()
    ]
    p = found.punctuality
    if p is not None:
        quantiles = {"0.5": p.error_p50_s, "0.9": p.error_p90_s, "0.99": p.error_p99_s}
        metrics += [
            gauge(
                "issue_error_seconds",
                "Absolute error of issue times against the schedule, by quantile.",
                *(((("quantile", q),), e) for q, e in quantiles.items()),
            ),
            gauge(
                "issue_error_max_seconds",
                "Largest absolute error of issue times.",
                ((), p.error_max_s),
            ),
            gauge(
                "late_operations",
                "Operations issued more than 1 ms after they were due.",
                ((), float(p.late)),
            ),
        ]
    if found.slowdown is not None:
        metrics.append(
            gauge(
                "slowdown_ratio",
                "All-to-all time with dense traffic over without; value and interval.",
                *(
                    ((("of", end),), getattr(found.slowdown, end))
                    for end in ("value", "low", "high")
                ),
            )
        )
    return metrics


def write_reports(request: Request, replay: Replay) -> None:
    """Write the fidelity of a replay as JSON, and its metrics, if requested.

    Raises
    ------
    ReplayError
        If a file cannot be written.
    """
    if request.fidelity is not None and replay.fidelity is not None:
        text = to_json("moetraffic replay fidelity", replay.fidelity, indent=2)
        write_text(request.fidelity, text + "\n")
    if request.metrics is not None:
        labels = common_labels(replay.source)
        write_metrics(request.metrics, result_metrics(replay), labels)


def common_labels(source: str) -> dict[str, str]:
    """Return the labels of every sample: the name of the replayed trace.

    A folder may hold the files of several replays.
    """
    return {"trace": source}
