"""Judge traffic generators at settings that they were not made with, against reruns.

The captures are those of ``benchmarks/reruns.py``::

    python benchmarks/synthetic.py judge --folder reruns --share dev \
        --generator parametric walk bootstrap iid --json dev.json

A generator is fitted to each of several runs of one initialization, and sampled.
Judged are

- *downstream figures* (``moetraffic.validation.downstream``): the mean absolute
  difference of a sample to its run, against the largest difference between two of the
  runs, times 1.25, or 2%; ``rerun`` is a rerun in place of the sample, judged by the
  other runs;
- *AUC* of two classifiers on features of windows of 10 iterations, trained on the
  samples and runs of all fits but one and tested on that one; of two runs against two
  others it is .5 by symmetry, and its spread is given;
- *course*: correlation of the smoothed load of samples with other seeds, mean over
  pairs of four, which is to be within .1 of that of reruns;
- *copies*, whatever the labels: movement (shares of experts in descending order, less
  their mean in the window) in windows of 10 iterations.  Mean distance of a sample's
  windows to the nearest of its run, over the least of two reruns, which is to be at
  least .95; how often windows 10 iterations apart have their nearest ones 10 iterations
  apart, so that they follow the order of the run, which is to be at most .05 above
  the largest of two reruns; and the share of ranks' rows, of all layers, whose ordered
  counts equal captured ones, at most that of reruns.

``analog+reruns`` is the analog generator fitted to a run with the other runs given.
With ``--scale 4`` a generator is fitted as before, and samples of four times the ranks
are compared with captures of as many (``reruns.py capture --scale 4``).

Final settings are for the last judgment alone.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from itertools import combinations, permutations
from pathlib import Path
from typing import Any

import numpy as np
import page
from scipy.ndimage import uniform_filter1d
from scipy.spatial.distance import cdist
from synthetic_tables import Judgment, report, tables
from traffic_baselines import BASELINES, Baseline, Draw, Generator

from moetraffic.arrays import Float64, Integer
from moetraffic.generate import TrafficModel
from moetraffic.generate.analog.analog import Analog
from moetraffic.generate.scenario import Scenario
from moetraffic.trace import Trace
from moetraffic.validation.classifier import windows
from moetraffic.validation.downstream import (
    FIGURES,
    accepted_difference,
    difference,
    downstream,
)
from moetraffic.validation.features import count_features
from moetraffic.validation.routing_counts import RoutingCounts, routing_counts

WINDOW = 10
"""Iterations of a window that is looked for in a run."""
SMOOTHED = 25
"""Iterations of the moving average of the load."""
COURSES = 3
"""Further samples of the first fit, whose courses are compared."""


class Walk(Baseline):
    """Analog walk: blocks of the run that begin like the one before has ended.

    The next block of 8 iterations follows one of the 5 iterations nearest to the last
    one in the square roots of the shares of all layers, among those at most 30 away in
    time; rows are those captured.
    """

    def _draw(
        self, scenario: Scenario, iterations: int, rng: np.random.Generator
    ) -> Draw:
        roots = np.sqrt(self.load).reshape(len(self.load), -1)
        total, at, order = len(roots), 0, [0]
        while len(order) < iterations:
            now = round(len(order) / iterations * total)  # nearby in time
            near = np.arange(max(0, now - 30), min(total - 1, now + 30))
            far = ((roots[near] - roots[at]) ** 2).sum(axis=1)
            begin = int(rng.choice(near[np.argsort(far)[:5]]))
            order += range(begin + 1, min(begin + 9, total))
            at = order[-1]
        return lambda step, _: self.counts[order[step]]


class Repeated(Baseline):
    """The captured run in its order; rank r sends the rows of its rank r modulo R."""

    def _draw(
        self, scenario: Scenario, iterations: int, rng: np.random.Generator
    ) -> Draw:
        rows = np.arange(scenario.ranks) % self.scenario.ranks
        return lambda step, _: self.counts[step % len(self.counts)][:, rows]


def generators() -> dict[str, Callable[[Trace], Generator]]:
    """Return what fits each generator to a trace."""
    found: dict[str, Callable[[Trace], Generator]] = {
        "analog": Analog.fit,
        "parametric": TrafficModel.fit,
        "repeated": Repeated.fit,
        "walk": Walk.fit,
        **{name: kind.fit for name, kind in BASELINES.items()},
    }
    return found


def judge_setting(
    setting: str,
    sources: Sequence[Path],
    paths: Sequence[Path],
    names: Sequence[str],
    fits: int,
) -> list[Judgment]:
    """Judge generators at one setting; the first row is of the reruns themselves.

    Generators are fitted to ``sources``, and their samples, of as many ranks as
    ``paths`` have, are compared with these.
    """
    real = []
    for path in paths:
        with Trace.open(path) as trace:
            real.append(routing_counts(trace))
    figures = [_figures(run, run.counts) for run in real]
    features = [_windows(run, run.counts) for run in real]
    accepted = accepted_difference(figures)
    apart = np.array([_copied(a.counts, b.counts) for a, b in permutations(real, 2)])
    judged = [_reruns(setting, figures, features, real, apart)]
    report(judged[-1])
    for name in names:
        began = time.process_time()
        samples: list[Integer] = []
        for number, path in enumerate(sources[:fits]):
            fitted = _fitted(name, path, [other for other in sources if other != path])
            samples.append(_sampled(fitted, real[number], 2 * number))
            if not number:
                others = [_course(samples[0])]
                for seed in range(1, 2 * COURSES, 2):
                    others.append(_course(_sampled(fitted, real[number], seed)))
        spent = (time.process_time() - began) / len(samples)
        runs = real[: len(samples)]
        differences = [
            difference(_figures(run, made), of)
            for run, made, of in zip(runs, samples, figures, strict=False)
        ]
        made_features = [
            _windows(run, made) for run, made in zip(runs, samples, strict=True)
        ]
        copied = np.array(
            [_copied(made, run.counts) for run, made in zip(runs, samples, strict=True)]
        )
        judged.append(
            Judgment(
                setting=setting,
                generator=name,
                differences=_over(differences, lambda x: np.mean(np.abs(x))),
                signed=_over(differences, np.mean),
                accepted=accepted,
                auc={
                    kind: [
                        _auc(kind, made_features, features[: len(samples)], held)
                        for held in range(len(samples))
                    ]
                    for kind in CLASSIFIERS
                },
                course=_correlation_of(others),
                nearest=float(copied[:, 0].mean() / apart[:, 0].min()),
                in_order=float(copied[:, 1].mean()),
                equal_rows=float(
                    np.mean(
                        [
                            _equal_rows(made, run.counts)
                            for run, made in zip(runs, samples, strict=True)
                        ]
                    )
                ),
                fit_s=spent,
            )
        )
        report(judged[-1])
    return judged


def _reruns(
    setting: str,
    figures: Sequence[Mapping[str, float]],
    features: Sequence[Float64],
    real: Sequence[RoutingCounts],
    apart: Float64,
) -> Judgment:
    """Judge reruns in place of samples: each by what the other runs accept."""
    pairs = [difference(a, b) for a, b in permutations(figures, 2)]
    limits = [
        accepted_difference([f for f in figures if f is not one]) for one in figures
    ]
    auc: dict[str, list[float]] = {kind: [] for kind in CLASSIFIERS}
    for kind in CLASSIFIERS:
        # trained on two runs, tested on two others, which are labeled either way
        for a, b, c, d in permutations(range(len(features)), 4):
            if a < b and c < d:
                made = [features[a], features[c]]
                found = _auc(kind, made, [features[b], features[d]], 1)
                auc[kind] += [found, 1 - found]
    courses = [_course(run.counts) for run in real]
    equal = [_equal_rows(a.counts, b.counts) for a, b in permutations(real, 2)]
    return Judgment(
        setting=setting,
        generator="rerun",
        differences=_over(pairs, lambda x: np.mean(np.abs(x))),
        signed=_over(pairs, np.mean),
        accepted=_over(limits, np.mean),
        auc=auc,
        course=_correlation_of(courses),
        nearest=float(apart[:, 0].mean() / apart[:, 0].min()),
        in_order=float(apart[:, 1].max()),
        equal_rows=max(equal),
        fit_s=0.0,
    )


def _over(
    each: Sequence[Mapping[str, float]], of: Callable[[list[float]], Any]
) -> dict[str, float]:
    return {name: float(of([one[name] for one in each])) for name in FIGURES}


def _fitted(name: str, path: Path, reruns: Sequence[Path]) -> Generator:
    """Fit a generator to a trace; ``NAME+reruns`` learns from the reruns as well."""
    kind, _, learns = name.partition("+")
    fit: Callable[..., Generator] = generators()[kind]
    with ExitStack() as stack:
        trace = stack.enter_context(Trace.open(path))
        if not learns:
            return fit(trace)
        others = [stack.enter_context(Trace.open(other)) for other in reruns]
        return fit(trace, reruns=others)


def _sampled(fitted: Generator, like: RoutingCounts, seed: int) -> Integer:
    """Sample counts ``[T, L, R, E]`` of the length and the ranks of a run."""
    iterations, _, ranks, _ = like.counts.shape
    demand = fitted.sample(iterations=iterations, seed=seed, ranks=ranks)
    return np.concatenate([block for _, block in demand.blocks()])


def _figures(run: RoutingCounts, counts: Integer) -> dict[str, float]:
    return downstream(
        counts, holder=run.holder, width=run.width, copy_bytes=run.copy_bytes
    )


def _windows(run: RoutingCounts, counts: Integer) -> Float64:
    found = windows(count_features(counts, holder=run.holder, width=run.width))
    return np.nan_to_num(found)


# ---- classifiers -----------------------------------------------------------------


def _boosting() -> Any:
    from sklearn.ensemble import HistGradientBoostingClassifier

    return HistGradientBoostingClassifier(random_state=0)


def _logistic() -> Any:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))


CLASSIFIERS: dict[str, Callable[[], Any]] = {
    "boosting": _boosting,
    "logistic": _logistic,
}
"""With the defaults of scikit-learn."""


def _auc(
    kind: str, made: Sequence[Float64], real: Sequence[Float64], held: int
) -> float:
    """Train on all pairs of runs but one, and compute the AUC on that one."""
    from sklearn.metrics import roc_auc_score

    train = [(x, y) for runs, y in ((made, 1), (real, 0)) for x in _but(runs, held)]
    fitted = CLASSIFIERS[kind]().fit(
        np.concatenate([x for x, _ in train]),
        np.concatenate([np.full(len(x), y) for x, y in train]),
    )
    tested = np.concatenate([made[held], real[held]])
    label = np.repeat([1, 0], [len(made[held]), len(real[held])])
    return float(roc_auc_score(label, fitted.predict_proba(tested)[:, 1]))


def _but(runs: Sequence[Float64], held: int) -> list[Float64]:
    return [run for at, run in enumerate(runs) if at != held]


# ---- course and copies -----------------------------------------------------------


def _load(counts: Integer) -> Float64:
    """Compute shares of experts ``[T, L, E]``."""
    total = counts.sum(axis=2, dtype=np.float64)
    return np.asarray(total / np.maximum(total.sum(axis=2, keepdims=True), 1))


def _course(counts: Integer) -> Float64:
    """Compute the smoothed load above that of a balanced router, ``[T, L, E]``."""
    smooth = uniform_filter1d(_load(counts), SMOOTHED, axis=0, mode="nearest")
    return np.asarray(smooth - 1 / counts.shape[3])


def _correlation(a: Float64, b: Float64) -> float:
    whole = np.sqrt((a**2).sum() * (b**2).sum())
    return float((a * b).sum() / whole) if whole > 0 else float("nan")


def _correlation_of(courses: Sequence[Float64]) -> float:
    """Compute the mean correlation of pairs."""
    return float(np.mean([_correlation(a, b) for a, b in combinations(courses, 2)]))


def _movement(counts: Integer) -> Float64:
    """Ordered shares in windows, less their mean there, ``[T - WINDOW + 1, W L E]``."""
    roots = np.sort(np.sqrt(_load(counts)), axis=2).reshape(len(counts), -1)
    found = np.lib.stride_tricks.sliding_window_view(roots, WINDOW, axis=0)
    return np.asarray(
        (found - found.mean(axis=2, keepdims=True)).reshape(len(found), -1)
    )


def _copied(counts: Integer, of: Integer) -> tuple[float, float]:
    """Compute the mean distance to the nearest window, and the share in its order."""
    squared = cdist(_movement(counts), _movement(of), "sqeuclidean")
    nearest = squared.argmin(axis=1)
    follows = nearest[WINDOW:] - nearest[:-WINDOW] == WINDOW
    return float(np.sqrt(squared.min(axis=1)).mean()), float(follows.mean())


def _equal_rows(counts: Integer, of: Integer) -> float:
    """Compute the share of ranks' rows that equal one of the other but for labels."""
    one, other = (
        {
            row.tobytes()
            for row in np.sort(each.astype(np.int32), axis=3)
            .swapaxes(1, 2)
            .reshape(-1, *each.shape[1::2])
        }
        for each in (counts, of)
    )
    return len(one & other) / len(one)


RESULTS = Path(__file__).parent / "results" / "synthetic.csv"


def sets(folder: Path, share: str) -> dict[str, list[Path]]:
    """Find the settings of which the run and three reruns are captured."""
    found = {}
    for run in sorted(folder.glob(f"{share}*-run.h5")):
        setting = run.name.removesuffix("-run.h5")
        reruns = sorted(folder.glob(f"{setting}-rerun*.h5"))
        if len(reruns) >= 3:
            found[setting] = [run, *reruns[:3]]
    return found


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parts = asked.add_subparsers(dest="part", required=True)
    one = parts.add_parser("judge", help="Fit, sample and compare with reruns.")
    one.add_argument("--folder", type=Path, default=Path("reruns"))
    one.add_argument("--share", choices=("dev", "final", ""), default="dev")
    one.add_argument("--settings", nargs="+", help="Some settings, such as dev00.")
    one.add_argument("--generator", nargs="+", default=["walk", "bootstrap", "iid"])
    one.add_argument("--fits", type=int, default=3, help="Runs fitted a setting.")
    one.add_argument("--scale", type=int, default=1, help="Times the ranks fitted.")
    one.add_argument("--json", type=Path)
    one.add_argument("--write", action="store_true", help=f"Replace {RESULTS.name}.")
    told = asked.parse_args()
    unknown = {name.removesuffix("+reruns") for name in told.generator}
    unknown -= set(generators())
    if unknown:
        raise SystemExit(f"generators are {', '.join(generators())}, not {unknown}")
    found = sources = sets(told.folder, told.share)
    if told.scale > 1:
        found = sets(told.folder / f"x{told.scale}", told.share)
        found = {
            setting: paths for setting, paths in found.items() if setting in sources
        }
    chosen = told.settings or list(found)
    judged: list[Judgment] = []
    for setting in chosen:
        if setting not in found:
            raise SystemExit(f"{setting} has no run with three reruns in {told.folder}")
        judged += judge_setting(
            setting, sources[setting], found[setting], told.generator, told.fits
        )
        if told.json is not None:
            page.save(told.json, [asdict(j) for j in judged])
    if not judged:
        sys.exit(f"no setting has a run and three reruns in {told.folder} yet")
    text = tables(judged)
    print(text)
    if told.write:
        page.save_table(RESULTS, page.rows_of(text), " ".join(sys.argv))


if __name__ == "__main__":
    main()
