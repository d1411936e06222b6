"""Write metrics in Prometheus' text format for node exporter's textfile collector.

The textfile collector reads every ``*.prom`` in a folder periodically, so a file is
replaced atomically.  Names end in their unit, as Prometheus requires: ``_seconds``,
``_bytes``, ``_total`` for counters.

References
----------
Prometheus, "Exposition formats", text format 0.0.4; "Metric and label naming".
node_exporter, README, "Textfile Collector".
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from prometheus_client import Metric, generate_latest

from moetraffic.trace.hdf5.durable import write_errors, write_whole

Samples = Iterable[tuple[Mapping[str, object], float]]
"""Labels and value of each sample."""


def metric(name: str, help: str, samples: Samples) -> Metric:
    """Create a metric from samples; those that are not finite are left out.

    Parameters
    ----------
    name
        Name with its unit; that of a counter ends in ``_total``.
    help
        Sentence that describes the metric.
    samples
        Labels and value of each sample.

    Returns
    -------
    prometheus_client.Metric
        Counter or gauge, by its name.
    """
    base = name.removesuffix("_total")
    made = Metric(base, help, "gauge" if base == name else "counter")
    for labels, value in samples:
        if math.isfinite(value):
            made.add_sample(name, {k: str(v) for k, v in labels.items()}, float(value))
    return made


def gauge(name: str, help: str, value: float, **labels: object) -> Metric:
    """Create a metric with one sample."""
    return metric(name, help, [(labels, value)])


def exposition(
    metrics: Iterable[Metric], prefix: str, common: Mapping[str, str]
) -> str:
    """Format metrics in Prometheus' text format.

    Parameters
    ----------
    metrics
        As from :func:`metric`; one without samples is left out.
    prefix
        First part of every name.
    common
        Labels of every sample.

    Examples
    --------
    >>> print(exposition([gauge("ranks", "Ranks.", 2)], "run", {"backend": "gloo"}))
    # HELP run_ranks Ranks.
    # TYPE run_ranks gauge
    run_ranks{backend="gloo"} 2.0
    <BLANKLINE>
    """
    made = [
        metric(
            f"{prefix}_{each.samples[0].name}",
            each.documentation,
            [({**common, **s.labels}, s.value) for s in each.samples],
        )
        for each in metrics
        if each.samples
    ]
    registry: Any = SimpleNamespace(collect=lambda: made)
    return generate_latest(registry).decode()


def write_metrics(
    path: Path,
    metrics: Iterable[Metric],
    prefix: str,
    common: Mapping[str, str],
) -> None:
    """Write metrics to a file in Prometheus' text format, atomically.

    The file is readable by all users, since the exporter runs as another one.

    Parameters
    ----------
    path
        File to write or replace.
    metrics, prefix, common
        As in :func:`exposition`.

    Raises
    ------
    MoetrafficError
        If the file cannot be written.
    """
    with write_errors(path):
        write_whole(path, exposition(metrics, prefix, common).encode())
        path.chmod(0o644)
