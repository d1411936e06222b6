"""Measure false alarms and detection of ``validate`` on captured reruns.

Needs the captures of ``benchmarks/reruns.py capture``: of each setting a run and its
reruns.  Each of the four is tested against the other three: a failure is a false alarm.
Then generators are fitted to the run, and one sample of each is tested against the
three reruns, which it has not seen::

    python benchmarks/validation.py --folder reruns --share dev --write table.md
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

import numpy as np
from reruns import settings_of

from moetraffic.generate.baselines import BASELINES
from moetraffic.generate.generator import Generator
from moetraffic.generate.model import TrafficModel
from moetraffic.trace import Trace
from moetraffic.validation.acceptance import FEWEST, Acceptance, accept
from moetraffic.validation.features import Features, count_features, trace_features
from moetraffic.validation.routing_counts import routing_counts

GENERATORS: dict[str, type[Generator]] = {"model": TrafficModel, **BASELINES}
REAL = "rerun"
"""Stands for a generator that makes no error."""


def sampled(name: str, path: Path, seed: int = 1) -> Features:
    """Compute the features of one sample, as long as the run that it is fitted to."""
    with Trace.open(path) as trace:
        run = routing_counts(trace)
        demand = (
            GENERATORS[name].fit(trace).sample(iterations=len(run.counts), seed=seed)
        )
        drawn = np.concatenate([block for _, block in demand.blocks()])
    # exchanges lie by slot, then layer: micro-batches are summed
    depth = len(run.layers)
    counts = drawn.reshape(len(drawn), -1, depth, *drawn.shape[2:]).sum(axis=1)
    return count_features(
        counts, name=name, layers=run.layers, holder=run.holder, width=run.width
    )


def judged(setting: str, folder: Path) -> dict[str, list[Acceptance]]:
    """Test each real run, and a sample of each generator."""
    paths = [folder / f"{setting}-{name}.h5" for name in ("run", "rerun1", "rerun2")]
    paths.append(folder / f"{setting}-rerun{FEWEST}.h5")
    real = []
    for path in paths:
        with Trace.open(path) as trace:
            real.append(trace_features(trace))
    found = {
        REAL: [
            accept(run, [other for other in real if other is not run]) for run in real
        ]
    }
    for name in GENERATORS:
        found[name] = [accept(sampled(name, paths[0]), real[1:])]
        test = found[name][0]
        print(setting, name, test.outcome, [t.name for t in test.failures], flush=True)
    return found


def table(found: dict[str, dict[str, list[Acceptance]]]) -> str:
    """Tabulate outcomes over settings, in Markdown."""
    lines = [
        "| trace | tested | failed | by figures | by a classifier | cannot be judged | "
        "most frequent figure |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in (REAL, *GENERATORS):
        tests = [test for each in found.values() for test in each[name]]
        first = Counter(t.failures[0].name for t in tests if t.failures)
        outcomes = Counter(t.outcome for t in tests)
        lines.append(
            f"| {name} | {len(tests)} | {outcomes['failed']} | "
            f"{sum(bool(t.failures) for t in tests)} | "
            f"{sum(t.recognized for t in tests)} | {outcomes['cannot be judged']} | "
            f"{first.most_common(1)[0][0] if first else ''} |"
        )
    return "\n".join(lines)


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--folder", type=Path, default=Path("reruns"))
    asked.add_argument("--share", choices=("dev", "final"), default="dev")
    asked.add_argument("--write", type=Path)
    told = asked.parse_args()
    found = {}
    for setting in settings_of(told.folder):
        last = told.folder / f"{setting.name}-rerun{FEWEST}.h5"
        if setting.name.startswith(told.share) and last.exists():
            found[setting.name] = judged(setting.name, told.folder)
    text = table(found)
    print(text)
    if told.write:
        told.write.write_text(text + "\n")


if __name__ == "__main__":
    main()
