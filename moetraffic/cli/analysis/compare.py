"""``moetraffic compare``: the distance between the traffic of two runs."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from moetraffic.cli.output import Printing, printed, progress
from moetraffic.errors import AnalysisError
from moetraffic.report.console.options import (
    Iterations,
    Layers,
    Of,
    Phase,
    TraceFile,
    option,
    selection,
    trace_argument,
)
from moetraffic.trace import Trace

if TYPE_CHECKING:
    from moetraffic.analysis.claim import Claim

MEASURES = {
    "shares": "total variation",
    "amounts": "relative difference",
    "skew": "Wasserstein-1",
}
PARTS = ("claims", "distances", "times")
BEYOND = 1
"""Exit code where the interval of a distance lies above its threshold."""


@printed(PARTS)
def compare(
    first: TraceFile,
    second: Annotated[Path, trace_argument("Trace file to compare with.")],
    layers: Layers = None,
    phase: Phase = "dispatch",
    iterations: Iterations = None,
    of: Of = None,
    at_most: list[str] | None = option(
        None,
        "Threshold such as shares=0.05, amounts=0.1 or skew=0.02; may be given "
        "again. Exit code 1 if the interval of a distance lies above it.",
    ),
    *,
    printing: Printing,
) -> None:
    """Compare two runs: claims, and distances with intervals and within-run noise.

    Example: moetraffic compare run.h5 other.h5 --at-most shares=0.05
    """
    from moetraffic.analysis import analyze
    from moetraffic.analysis.comparison import compare as compared
    from moetraffic.analysis.comparison import worst
    from moetraffic.analysis.engine import effort
    from moetraffic.report.plain_data import claim_dict
    from moetraffic.report.results import comparison as report

    chosen = selection(layers, iterations, phase, of=of)
    thresholds = _thresholds(at_most or [])
    with Trace.open(first) as a, Trace.open(second) as b:
        total = sum(effort(trace, **chosen, stages=False) for trace in (a, b))
        with progress(
            "reading both", total, quiet=printing.as_json or total < 8
        ) as tick:
            found = compared(a, b, **chosen, tick=tick)
        replays = [t for t in (a, b) if t.meta.origin == "replayed"]
        partial = [] if iterations else _partial(a, b)
        sources = [f"{t.name}: replay of {t.meta.source}." for t in replays]
        settings = _settings(a, b) if len(replays) == 2 else []
        if a.meta.world != b.meta.world:  # a cause of distances: named before them
            ranks = f"Numbers of ranks differ: {a.meta.world} and {b.meta.world}."
            settings, sources = [ranks, *sources, *settings], []
        claimed: list[tuple[Claim, ...]] = [(), ()]
        if not printing.only or "claims" in printing.only:
            claimed = [analyze(t, parts=("claims",), **chosen).claims for t in (a, b)]
    beyond = worst(found, thresholds)
    about = {d.of: d.measure for d in found.distances}
    for name, measure in MEASURES.items():
        if measure in thresholds and measure not in about.values():
            raise AnalysisError(
                f"a threshold of {name} needs distances of {name}, but there are none "
                f"({'; '.join(found.notes)}): give another --at-most"
            )
    unrouted = MEASURES["shares"] in thresholds and "expert load" not in about
    data = {
        "first": str(first),
        "identical": found.identical,
        "second": str(second),
        "distances": [
            asdict(d) | {"beyond_noise": d.beyond_noise} for d in found.distances
        ],
        "claims": {
            name: [claim_dict(c) for c in run]
            for name, run in zip(("first", "second"), claimed, strict=True)
        },
        "times_s": [asdict(t) for t in found.times],
        "thresholds": thresholds,
        "beyond_threshold": [[d.layer, d.of] for d in beyond],
        "notes": list(found.notes),
    }
    distances, *times = report.tables(found, beyond)
    printing.present(
        data,
        *partial,
        *settings,
        *report.sentences(found, beyond, times_first=bool(replays)),
        *([f"Both are one file: {first.name}."] if first.samefile(second) else []),
        *sources,
        *(
            ["The threshold of shares is applied to bytes: no expert load is compared."]
            if unrouted
            else []
        ),
        *([] if found.identical else [report.claim_sentence(*claimed)]),
        parts={
            "claims": report.claims(*claimed),
            "distances": [distances],
            "times": times,
        },
        code=BEYOND if beyond else 0,
    )


def _partial(first: Trace, second: Trace) -> list[str]:
    """Say that one trace has only some iterations of the other, such as a replay."""
    fewer, more = sorted((first, second), key=lambda trace: len(trace.iterations))
    some, every = (set(trace.iterations.tolist()) for trace in (fewer, more))
    if not some or not some < every:
        return []
    within = range(min(some), max(some) + 1)
    if some != every & set(within):
        return []  # evaluations are between, so that none of the ranges has them
    return [
        f"{fewer.name} has {len(some)} of the {len(every)} iterations of {more.name}: "
        f"--iterations {within.start}:{within.stop} compares the same ones."
    ]


def _settings(first: Trace, second: Trace) -> list[str]:
    """State which settings of two replays differ; pace and scale are in the source."""
    settings = (
        ("backend", first.meta.backend, second.meta.backend),
        ("ranks", first.meta.world, second.meta.world),
        ("hosts", *(", ".join(dict.fromkeys(t.meta.nodes)) for t in (first, second))),
    )
    other = [f"{name} {a} and {b}" for name, a, b in settings if a != b]
    return [
        "Settings of the two replays: "
        f'{"; ".join(other) or "same backend, ranks and hosts"}; the lines "replay '
        'of" have pace and scale; a trace does not record the network.'
    ]


def _thresholds(given: list[str]) -> dict[str, float]:
    found = {}
    for each in given:
        name, _, value = each.partition("=")
        try:
            limit = float(value)
        except ValueError:
            limit = -1.0
        most = 1.0 if name == "shares" else sys.float_info.max
        if name not in MEASURES or not 0 <= limit <= most:
            raise AnalysisError(
                "a threshold is NAME=NUMBER, where the name is one of "
                f"{', '.join(MEASURES)} and the number is 0 or more (of shares at most "
                f"1), but is {each!r}: give --at-most shares=0.05"
            )
        found[MEASURES[name]] = limit
    return found
