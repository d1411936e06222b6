"""Judge the surrogate, and the table of ``compare --against``, at drawn settings.

The captures are those of ``benchmarks/reruns.py``: a run, reruns of it (the same
initialization, other data) and runs of other seeds::

    python benchmarks/synthetic.py measure --folder reruns
    python benchmarks/synthetic.py judge

``measure`` writes a row for each run to ``results/synthetic.csv``: its seeds, the
statistics of ``moetraffic.synthetic.statistics`` and nine downstream figures.  Runs are
captures; samples of a surrogate fitted to each; and, of each, four wrong versions:
uniform, i.i.d., frozen, and permuted in time.  ``judge`` computes from these rows alone

- how often the table finds a run outside, by six and by three real runs: a rerun (false
  alarm), a wrong version of the run left out, and its sample;
- in how many of nine figures samples are accepted: their mean absolute difference to
  the fitted run is at most 1.25 times the largest of two of the run and three reruns,
  or 2%;
- the error of the rank correlation over the largest distance of two of these runs;
- the AUC of a linear discriminant on windows of ten iterations, trained on all pairs of
  a run and its sample but one, and tested on that one.

``final`` settings are for the last judgment alone.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas
from scipy.stats import rankdata

from moetraffic.analysis.forecast import score
from moetraffic.analysis.load import hot_members, retention
from moetraffic.analysis.measures import entropy, total_variation
from moetraffic.arrays import Float64, Int64, Integer
from moetraffic.synthetic.compare import statistic_rows
from moetraffic.synthetic.counts import routing_counts
from moetraffic.synthetic.fit import fit
from moetraffic.synthetic.statistics import STATISTICS, statistics
from moetraffic.synthetic.surrogate import sample
from moetraffic.trace import PHASES, ROUTING, Trace
from moetraffic.trace.what_if.relocate import routed_layers

RESULTS = Path(__file__).parent / "results" / "synthetic.csv"

FIGURES = (
    *("entropy", "max over mean", "change", "p99 link time", "p50 completion"),
    *("p99 completion", "skill at 1", "skill at 10", "retention at 10"),
)
"""What users compute from a run."""

SLACK, TOLERATED = 1.25, 0.02
"""Accepted: times the largest difference of two reruns, or a relative difference."""

FITTED = 4
"""The run and three reruns, by whose differences a sample is accepted."""

LAG = 10
"""Iterations ahead of a forecast and of the retention, and those of a window."""

PORT_BYTES_S = 25e9
"""Rate of a port, each way: 200 Gb/s."""

WRONG = ("uniform", "i.i.d.", "frozen", "permuted")


@dataclass(frozen=True, kw_only=True)
class Run:
    """Routing of a run, and where its experts are."""

    counts: Int64  # [T, L, R, E] token copies
    holder: Int64  # [L, E] rank of its group that holds an expert
    width: int  # W, ranks of a group
    k: int
    copy_bytes: int  # of a token copy, as sent


def read(trace: Trace, iterations: range | None = None) -> Run:
    """Read the routing of a capture."""
    router = {s.layer: s.group for s in trace.sites if s.operation == ROUTING}
    first = int(trace.iterations[0])
    return Run(
        counts=routing_counts(trace, iterations=iterations),
        holder=np.stack([trace.holder(x, router[x], first) for x in sorted(router)]),
        width=max(len(trace.groups[group].ranks) for group in router.values()),
        k=trace.meta.k,
        copy_bytes=max(layer.row_bytes for layer in routed_layers(trace)),
    )


# ---- downstream figures ----------------------------------------------------------


def figures(run: Run) -> dict[str, float]:
    """Compute the downstream figures of a run, by the names in :data:`FIGURES`.

    Times are by the port model: an all-to-all ends when the busiest port of a
    non-blocking switch has sent or received its bytes.
    """
    load = shares(run.counts)
    total, depth, ranks, _ = run.counts.shape
    onto = (run.holder[..., None] == np.arange(run.width)).astype(float)  # [L, E, W]
    calls = np.zeros((total, depth))
    for t, counts in enumerate(run.counts):
        sent = (counts @ onto).reshape(depth, ranks // run.width, run.width, run.width)
        sent[..., np.arange(run.width), np.arange(run.width)] = 0
        ports = np.maximum(sent.sum(axis=2), sent.sum(axis=3))
        calls[t] = ports.max(axis=(1, 2)) * run.copy_bytes / PORT_BYTES_S
    iteration = len(PHASES) * calls.sum(axis=1)
    skills = [
        next(row["below_mean"] for row in scores.rows if row["chosen"])
        for scores in score(load.reshape(total, -1), horizons=(1, LAG), period=0)
    ]
    known, hot = np.ones(total, bool), max(1, load.shape[2] // 4)
    kept = [
        retention(hot_members(load[:, layer], hot), known, np.array([LAG]))[0]
        for layer in range(depth)
    ]
    values = (
        np.nanmean(entropy(load)),
        load.max(axis=2).mean() * load.shape[2],
        np.nanmean(total_variation(load[1:], load[:-1])),
        np.percentile(calls, 99),
        *np.percentile(iteration, [50, 99]),
        *skills,
        np.mean(kept),
    )
    return dict(zip(FIGURES, map(float, values), strict=True))


def difference(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, float]:
    """Compute the signed difference of each figure: relative, of skills absolute."""
    found = {}
    for name in FIGURES:
        scale = (abs(one[name]) + abs(other[name])) / 2
        if name.startswith("skill") or one[name] == other[name]:
            scale = 1.0
        found[name] = (one[name] - other[name]) / scale
    return found


def shares(counts: Integer) -> Float64:
    """Compute the experts' shares of the token copies, ``[T, L, E]``."""
    total = counts.sum(axis=2, dtype=float)
    return np.asarray(total / np.maximum(total.sum(axis=2, keepdims=True), 1))


# ---- runs ------------------------------------------------------------------------


def wrong(counts: Integer, rng: np.random.Generator) -> dict[str, Integer]:
    """Make wrong versions of a run ``[T, L, R, E]``, by the names of :data:`WRONG`."""
    copies = int(counts[0, 0, 0].sum())
    load = counts.mean(axis=(0, 2)) / copies  # [L, E]
    rows = np.broadcast_to(load[:, None], counts.shape)
    made = (
        rng.multinomial(copies, np.full_like(rows, 1 / counts.shape[3])),
        rng.multinomial(copies, rows),
        np.broadcast_to(np.rint(counts.mean(axis=0)).astype(int), counts.shape),
        rng.permutation(counts),
    )
    return dict(zip(WRONG, made, strict=True))


def measured(folder: Path, setting: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a row for each run of a setting: captures, wrong versions, samples."""
    name = setting["name"]
    runs = {
        path.stem.removeprefix(f"{name}-"): read(Trace.open(path))
        for path in sorted(folder.glob(f"{name}-*.h5"))
    }
    seeds = dict(zip(("run", "seed1", "seed2"), setting["seeds"], strict=True))
    data_seeds = {f"rerun{n}": seed for n, seed in enumerate(setting["data_seeds"], 1)}
    size = {key: setting[key] for key in ("router", "k", "experts", "layers", "ranks")}
    samples = {
        key: sample(
            fit([run.counts], run.k, ep=run.width),
            iterations=len(run.counts),
            seed=number,
        ).counts()
        for number, (key, run) in enumerate(runs.items())
        if key in ("run", *data_seeds)
    }
    auc = separation(
        [windows(runs[key].counts) for key in samples],
        [windows(counts) for counts in samples.values()],
    )
    for number, (key, run) in enumerate(runs.items()):
        made = {"captured": run.counts}
        if key in samples:
            made["surrogate"] = samples[key]
            made |= wrong(run.counts, np.random.default_rng(number))
        for source, counts in made.items():
            row = {"setting": name, "capture": key, "source": source, **size}
            row |= {"seed": seeds.get(key, seeds["run"])}
            row |= {"data_seed": data_seeds.get(key)}
            row |= {f"statistic {n}": v for n, v in statistics(counts).items()}
            if source in ("captured", "surrogate"):
                row |= figures(replace(run, counts=counts))
            if source == "surrogate":
                row["auc"] = auc[list(samples).index(key)]
            yield row


def windows(counts: Integer) -> Float64:
    """Describe windows of ten iterations: statistics and ordered shares, ``[n, D]``."""
    rows = []
    for first in range(0, len(counts) - LAG + 1, LAG):
        part = counts[first : first + LAG]
        ordered = np.sort(shares(part), axis=2).mean(axis=(0, 1))
        rows.append([*statistics(part).values(), *ordered])
    return np.nan_to_num(np.array(rows))


def separation(real: Sequence[Float64], made: Sequence[Float64]) -> list[float]:
    """Compute the AUC on each pair of a linear discriminant trained on the others."""
    found = []
    for held in range(len(real)):
        train = np.concatenate([*real[:held], *real[held + 1 :]])
        other = np.concatenate([*made[:held], *made[held + 1 :]])
        x = np.concatenate([train, other])
        center, scale = x.mean(axis=0), x.std(axis=0) + 1e-9
        x = (x - center) / scale
        label = np.repeat([-1.0, 1.0], [len(train), len(other)])
        ridge = x.T @ x + len(x) * 1e-2 * np.eye(x.shape[1])
        weights = np.linalg.solve(ridge, x.T @ label)
        tested = np.concatenate([made[held], real[held]])
        place = rankdata((tested - center) / scale @ weights)
        n, m = len(made[held]), len(real[held])
        found.append(float((place[:n].sum() - n * (n + 1) / 2) / (n * m)))
    return found


# ---- judgment --------------------------------------------------------------------


def outside(row: Mapping[str, Any], real: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the table finds a run outside the intervals of real runs."""

    def own(run: Mapping[str, Any]) -> dict[str, float]:
        return {name: run[f"statistic {name}"] for name in STATISTICS}

    return any(r["outside"] for r in statistic_rows(own(row), [own(x) for x in real]))


def judged(setting: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Judge samples and the table at a setting: counts of cases, and errors."""
    reruns = [row for row in rows if row["capture"] == "run"]
    reruns += [row for row in rows if row["capture"].startswith("rerun")]
    real = [row for row in reruns if row["source"] == "captured"]
    found: dict[str, Any] = {"setting": setting, "reruns": len(real) - 1}
    for number in (6, 3):
        for source in ("captured", "surrogate", *WRONG):
            cases = [
                outside(row, others[:number])
                for place, run in enumerate(real)
                for row in reruns
                if (row["capture"], row["source"]) == (run["capture"], source)
                # the runs that follow in a circle
                and len(others := [*real[place + 1 :], *real[:place]]) >= number
            ]
            found[f"{source} by {number}"] = (sum(cases), len(cases))
    seeds = [row for row in rows if row["capture"].startswith("seed")]
    cases = [outside(row, real[:6]) for row in seeds if len(real) > 5]
    found["other seeds by 6"] = (sum(cases), len(cases))
    made = [row for row in reruns if row["source"] == "surrogate"]
    fitted = real[:FITTED]
    apart = [difference(a, b) for a, b in combinations(fitted, 2)]
    errors = [difference(a, b) for a, b in zip(made, fitted, strict=False)]
    worst = {}
    for name in FIGURES:
        accepted = max(TOLERATED, SLACK * max(abs(pair[name]) for pair in apart))
        worst[name] = float(np.mean([abs(row[name]) for row in errors])) / accepted
    found["accepted"] = sum(ratio <= 1 for ratio in worst.values())
    found["worst figures"] = {
        name: round(ratio, 2) for name, ratio in worst.items() if ratio > 1
    }
    key = "statistic rank_correlation"
    distance = max(abs(a[key] - b[key]) for a, b in combinations(fitted, 2))
    error = np.mean([abs(a[key] - b[key]) for a, b in zip(made, fitted, strict=False)])
    found["rank correlation"] = float(error / distance)
    found["auc"] = float(np.mean([row["auc"] for row in made]))
    return found


def report(settings: Sequence[Mapping[str, Any]]) -> None:
    """Print the judgment of each setting, and the rates of all."""
    for each in settings:
        print(f"{each['setting']}: {each['reruns']} reruns")
        print(
            f"  figures accepted {each['accepted']} of {len(FIGURES)}, beyond what is "
            f"accepted: {each['worst figures']}; rank correlation off by "
            f"{each['rank correlation']:.2f} of the reruns' largest distance; "
            f"AUC {each['auc']:.2f}"
        )
    print(f"figures accepted: {sum(x['accepted'] for x in settings)}")
    for name in settings[0]:
        if " by " in name:
            hits, cases = np.sum([each[name] for each in settings], axis=0)
            share = hits / max(cases, 1)
            print(f"outside, {name}: {hits} of {cases} ({share:.1%})")


def main() -> None:
    """Measure runs, or judge what was measured."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parts = parser.add_subparsers(dest="part", required=True)
    measure = parts.add_parser("measure", help="Write a row for each run.")
    measure.add_argument("--folder", type=Path, default=Path("reruns"))
    measure.add_argument("--share", default="", help="dev, final, or a setting.")
    judge = parts.add_parser("judge", help="Print what the rows show.")
    for part in (measure, judge):
        part.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    table = pandas.DataFrame({"setting": []})
    if options.results.exists():
        table = pandas.read_csv(options.results)
    if options.part == "measure":
        drawn = json.loads((options.folder / "settings.json").read_text())
        for setting in drawn["settings"]:
            name = setting["name"]
            complete = (options.folder / f"{name}-rerun3.h5").exists()
            if name.startswith(options.share) and complete:
                rows = pandas.DataFrame(measured(options.folder, setting))
                others = table[table["setting"] != name]
                table = pandas.concat([others, rows]) if len(others) else rows
                table = table.sort_values("setting", kind="stable")
                table.to_csv(options.results, index=False, float_format="%.6g")
        return
    report(
        [
            judged(str(name), rows.to_dict("records"))
            for name, rows in table.groupby("setting")
        ]
    )


if __name__ == "__main__":
    main()
