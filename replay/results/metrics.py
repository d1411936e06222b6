"""Metrics: a replay's figures as a file that Prometheus' node exporter reads.

The textfile collector reads every ``*.prom`` in a folder again and again, so the file
appears whole or not at all, also while the replay runs.  Names end in their unit, as
Prometheus asks for: ``_seconds``, ``_bytes``, ``_total`` of what only grows.

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

from moetraffic.errors import ReplayError
from moetraffic.trace.hdf5.durable import remedy, write_whole

from .fidelity import Fidelity
from .result import Summary

PREFIX = "moetraffic_replay"

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One metric with its samples."""

    name: str  # without PREFIX, with its unit
    kind: str  # "gauge" or "counter"
    help: str
    samples: tuple[tuple[Labels, float], ...]


def gauge(name: str, help: str, *samples: tuple[Labels, float]) -> Metric:
    """What may rise and fall."""
    return Metric(name=name, kind="gauge", help=help, samples=samples)


def exposition(metrics: Iterable[Metric], common: Mapping[str, str]) -> str:
    """The metrics in Prometheus' text format.

    Parameters
    ----------
    metrics
        Each name once; a sample that is not finite is left out.
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
        told = [(own, v) for own, v in metric.samples if math.isfinite(v)]
        if not told:
            continue
        name = f"{PREFIX}_{metric.name}"
        text = metric.help.replace("\\", "\\\\").replace("\n", "\\n")
        lines += [f"# HELP {name} {text}", f"# TYPE {name} {metric.kind}"]
        for own, value in told:
            labels = ",".join(
                f'{label}="{_escaped(said)}"'
                for label, said in {**common, **dict(own)}.items()
            )
            lines.append(f"{name}{{{labels}}} {value!r}")
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def write_metrics(
    path: Path, metrics: Iterable[Metric], common: Mapping[str, str]
) -> None:
    """Write the metrics; the file is whole or absent.

    Raises
    ------
    ReplayError
        If the system refuses.
    """
    try:
        write_whole(path, exposition(metrics, common).encode())
        path.chmod(0o644)  # the exporter is another user
    except OSError as error:
        raise ReplayError(
            f"{path} cannot be written ({error.strerror}): {remedy(error)}"
        ) from None


def progress_metrics(
    stage: str, done: Mapping[int, int], of: Mapping[int, int], elapsed_s: float
) -> list[Metric]:
    """How far each rank is, while the replay runs.

    Parameters
    ----------
    stage
        "verify" or "replay".
    done, of
        By rank, its operations that have ended, and all of them.
    elapsed_s
        Since the stage began.
    """
    at = (("stage", stage),)

    def each(values: Mapping[int, int]) -> list[tuple[Labels, float]]:
        return [((*at, ("rank", str(r))), float(n)) for r, n in sorted(values.items())]

    return [
        Metric(
            name="rank_operations_total",
            kind="counter",
            help="Operations that a rank has done in this stage.",
            samples=tuple(each(done)),
        ),
        gauge(
            "rank_operations_planned",
            "Operations that a rank has to do in this stage.",
            *each(of),
        ),
        gauge("stage_elapsed_seconds", "Time since the stage began.", (at, elapsed_s)),
        gauge("running", "1 while the replay runs, 0 when it has ended.", ((), 1.0)),
    ]


def result_metrics(summary: Summary) -> list[Metric]:
    """The figures of a replay that has ended."""
    s = summary
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
                "In how many operations the rank came last that did so most often.",
                ((("rank", str(s.straggler)),), s.straggler_share),
            )
        )
    return metrics + (_fidelity(s.fidelity) if s.fidelity is not None else [])


def _fidelity(found: Fidelity) -> list[Metric]:
    held = {
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
        for name, what in held.items()
    ]
    p = found.punctuality
    if p is not None:
        told = {"0.5": p.error_p50_s, "0.9": p.error_p90_s, "0.99": p.error_p99_s}
        metrics += [
            gauge(
                "issue_error_seconds",
                "Absolute error of issue times against the schedule, by quantile.",
                *(((("quantile", q),), e) for q, e in told.items()),
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
                "All-to-alls beside dense traffic over without; value and interval.",
                *(
                    ((("of", end),), getattr(found.slowdown, end))
                    for end in ("value", "low", "high")
                ),
            )
        )
    return metrics
