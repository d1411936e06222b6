"""Measure false alarms and detection of ``validate`` on captured reruns.

Needs the captures of ``benchmarks/reruns.py capture``: of each setting a run, its
reruns, and runs of other seeds.  Each of a run and three reruns is tested against the
other three, and so is each of a run and three of other seeds: a failure is a false
alarm.  Then generators are fitted to the run, and one sample of each is tested against
the three reruns, which it has not seen, and against these and the run, which a user has
as well::

    python benchmarks/validation.py --folder reruns --share final
        --write

Results are kept in ``validation-SETTING.json`` beside the captures: an interrupted run
goes on where it ended.  ``--again`` tests all settings anew.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from page import rows_of, save, save_table
from reruns import settings_of
from traffic_baselines import BASELINES, Generator

from moetraffic.generate.parametric.model import TrafficModel
from moetraffic.report.results.acceptance import as_dict
from moetraffic.trace import Trace
from moetraffic.validation.acceptance import FEWEST, accept
from moetraffic.validation.features import Features, count_features, trace_features
from moetraffic.validation.routing_counts import routing_counts

GENERATORS: dict[str, Callable[[Trace], Generator]] = {
    "parametric": TrafficModel.fit,
    "parametric, not calibrated": partial(TrafficModel.fit, calibrate=False),
    **{name: kind.fit for name, kind in BASELINES.items()},
}
FALSE_ALARMS = ("rerun, three others", "other seed, three others")

RESULTS = Path(__file__).parent / "results" / "validation.csv"


def sampled(name: str, path: Path, seed: int = 1) -> Features:
    """Compute the features of one sample, as long as the run that it is fitted to."""
    with Trace.open(path) as trace:
        run = routing_counts(trace)
        fitted = GENERATORS[name](trace)
    demand = fitted.sample(iterations=len(run.counts), seed=seed)
    drawn = np.concatenate([block for _, block in demand.blocks()])
    # exchanges lie by slot, then layer: micro-batches are summed
    depth = len(run.layers)
    counts = drawn.reshape(len(drawn), -1, depth, *drawn.shape[2:]).sum(axis=1)
    return count_features(
        counts, name=name, layers=run.layers, holder=run.holder, width=run.width
    )


def judged(setting: str, folder: Path) -> dict[str, Any]:
    """Test each real run, and a sample of each generator, by what is tested."""
    found: dict[str, Any] = {}
    run = _features([folder / f"{setting}-run.h5"])
    reruns = run
    for kind, title in zip(("rerun", "seed"), FALSE_ALARMS, strict=True):
        paths = [folder / f"{setting}-{kind}{n + 1}.h5" for n in range(FEWEST)]
        if not all(path.exists() for path in paths):
            continue
        real = run + _features(paths)
        if kind == "rerun":
            reruns = real
        for at, one in enumerate(real):
            others = [other for other in real if other is not one]
            found[f"{title}/{at}"] = as_dict(accept(one, others))
    for name in GENERATORS:
        sample = sampled(name, folder / f"{setting}-run.h5")
        for title, real in ("three reruns", reruns[1:]), ("these and the run", reruns):
            test = accept(sample, real, classify=False)
            if not test.differs:  # else classifiers, which take longest, change nothing
                test = accept(sample, real)
            found[f"{name}, {title}"] = as_dict(test)
    return found


def _features(paths: Sequence[Path]) -> list[Features]:
    found = []
    for path in paths:
        with Trace.open(path) as trace:
            found.append(trace_features(trace))
    return found


def table(found: Mapping[str, Mapping[str, Any]]) -> str:
    """Tabulate outcomes over settings, in Markdown."""
    lines = [
        "| trace, and what it is tested against | tested | failed | by figures | "
        "by a classifier alone | cannot be judged | wrong at |",
        "|---|---|---|---|---|---|---|",
    ]
    rows: dict[str, list[tuple[str, Any]]] = defaultdict(list)
    for setting, tests in found.items():
        for name, test in tests.items():
            rows[name.partition("/")[0]].append((setting, test))
    for name, tests in rows.items():
        outcomes = Counter(test["outcome"] for _, test in tests)
        wrong = [
            setting
            for setting, test in tests
            if (test["outcome"] == "failed") == (name in FALSE_ALARMS)
        ]
        lines.append(
            f"| {name} | {len(tests)} | {outcomes['failed']} | "
            f"{sum(test['differs'] for _, test in tests)} | "
            f"{sum(test['recognized'] > test['differs'] for _, test in tests)} | "
            f"{outcomes['cannot be judged']} | {', '.join(wrong)} |"
        )
    return "\n".join(lines)


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--folder", type=Path, default=Path("reruns"))
    asked.add_argument("--share", choices=("dev", "final", "all"), default="all")
    asked.add_argument("--again", action="store_true", help="Keep no earlier results.")
    asked.add_argument("--json", type=Path, help="write the results to this file")
    asked.add_argument("--write", action="store_true", help=f"Replace {RESULTS.name}.")
    told = asked.parse_args()
    found = {}
    for setting in settings_of(told.folder):
        name = setting.name
        last = told.folder / f"{name}-rerun{FEWEST}.h5"
        if told.share not in ("all", name.rstrip("0123456789")) or not last.exists():
            continue
        kept = told.folder / f"validation-{name}.json"
        if told.again or not kept.exists():
            kept.write_text(json.dumps(judged(name, told.folder)))
        found[name] = json.loads(kept.read_text())
        text = table(found)
        print(f"{name} tested", flush=True)
        if told.write:
            save_table(RESULTS, rows_of(text), " ".join(sys.argv))
    print(text)
    if told.json:
        save(told.json, found)


if __name__ == "__main__":
    main()
