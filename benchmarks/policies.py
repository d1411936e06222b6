"""Compare scheduling policies over many traces and networks, as a table to cite.

Half of the traces are sampled from shipped traffic models, half are fresh virtual
captures; which models, sizes and seeds is drawn when the program runs.  A task of the
dask cluster (a local one without ``--scheduler-address``) is one trace: it is made,
and all policies serve it.  ``--write`` puts the table between the markers of a page.
"""

from __future__ import annotations

import argparse
import secrets
import tempfile
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from dataclasses import replace as changed
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from distributed import LocalCluster, as_completed
from page import replace, save
from scipy.stats import t as student

from moetraffic import Trace, __version__, evaluate
from moetraffic.analysis.cluster import connected
from moetraffic.cli import main as moetraffic
from moetraffic.cli.output import progress
from moetraffic.fabric import load_fabric
from moetraffic.policies.networks import OPTICAL
from moetraffic.policies.packets import PacketNetwork
from moetraffic.policies.series import byte_series
from moetraffic.policies.service import crossing, line_bytes
from moetraffic.synthetic import preset_names

BEGIN = "<!-- policies: benchmarks/policies.py -->"
END = "<!-- end of policies -->"

POLICIES = (
    *("packets", "rotation", "rotation-two-hop", "static-mean", "birkhoff"),
    *("solstice", "max-weight", "regional", "all-at-once", "sprayed"),
    "shifted-rounds",
)
NETWORKS = {"single": {}, "leaf-spine": {"oversubscription": 2}, "torus": {}}
"""Packet networks, beside optical circuits; one rank a host, NICs of 400 Gbps."""

RANKS = (4, 8)

DELAY = 0.01
"""Reconfiguration delay over the time that a port needs for its mean exchange."""


def draw(number: int, seed: int, iterations: int) -> list[dict[str, Any]]:
    """Draw the settings of the traces, models and captures in turn."""
    rng = np.random.default_rng(seed)
    models = rng.permutation(preset_names()).tolist()
    drawn = []
    for at in range(number):
        ranks = int(rng.choice(RANKS))
        experts = ranks * int(rng.choice((1, 2, 4)))
        own = int(rng.integers(2**31))
        size = ["--iterations", str(iterations), "--seed", str(own)]
        if at % 2 == 0:
            made = models[at // 2 % len(models)]
            ask = ["generate", "--from", made, "--ranks", str(ranks)]
        else:
            made = "virtual capture"
            ask = ["capture", "--virtual", "--ep", str(ranks), "--layers", "2"]
            ask += ["--experts", str(experts), "--heads", "2"]
            ask += ["--hidden", str(rng.choice((32, 64))), "--micro-batch", "1"]
            ask += ["--sequence", str(rng.choice((64, 128)))]
        drawn.append({"made": made, "ranks": ranks, "command": [*ask, *size]})
    return drawn


def measure(setting: dict[str, Any], most: int) -> dict[str, Any]:
    """Make a trace, and evaluate all policies on all networks."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.h5"
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            failed = moetraffic([*setting["command"], "-o", str(path)])
        if failed:
            return {**setting, "failures": ["the trace was not made"], "scores": []}
        with Trace.open(path) as trace:
            world = trace.meta.world
            last = [max(trace.layers)]
            (sent,) = byte_series(trace, layers=last).layers.values()
            busiest = np.mean([line_bytes(crossing(one)) for one in sent[:]])
            delay = DELAY * float(busiest) / OPTICAL.rate_bytes_s
            networks: dict[str, Any] = {"optical": changed(OPTICAL, delay_s=delay)}
            for name, options in NETWORKS.items():
                rate = OPTICAL.rate_bytes_s
                fabric = load_fabric(name, world, capacity=rate, **options)
                networks[name] = PacketNetwork(network=fabric)
            result = evaluate(
                trace,
                POLICIES,
                networks=networks,
                forecasters=("persistence", "oracle"),
                layers=last,
                most=most,
            )
    return {
        **setting,
        "ranks": world,
        "failures": list(result.data["failures"]),
        "scores": result.rows("scores"),
    }


def summary(runs: list[dict[str, Any]]) -> pd.DataFrame:
    """Summarize scores over traces: geometric means with Student's intervals."""
    rows = pd.DataFrame([s for run in runs for s in run["scores"]])
    rows = rows[rows["forecaster"] != "oracle"]
    made = []
    for (policy, network), of in rows.groupby(["policy", "network"], sort=False):
        log = np.log(of["over_bound"].to_numpy())
        half = student.ppf(0.975, len(log) - 1) * log.std(ddof=1) / np.sqrt(len(log))
        made.append(
            {
                "network": network,
                "policy": policy,
                "traces": len(log),
                "over bound": np.exp(log.mean()),
                "95% interval": f"{np.exp(log.mean() - half):.3g} to "
                f"{np.exp(log.mean() + half):.3g}",
                "worst": np.exp(log.max()),
                "regret, median": of["regret"].median(),
                "regret, worst": of["regret"].max(),
                "planning [ms]": 1e3 * of["planning_p50_s"].median(),
            }
        )
    table = pd.DataFrame(made)
    place = table["network"].map(["optical", *NETWORKS].index)
    return table.assign(place=place).sort_values(["place", "over bound"])


def markdown(
    table: pd.DataFrame, runs: list[dict[str, Any]], seed: int, most: int
) -> str:
    """Write the table in Markdown, with the conditions."""
    ranks = sorted({run["ranks"] for run in runs})
    models = [run["made"] for run in runs if run["made"] != "virtual capture"]
    captures = len(runs) - len(models)
    lines = [
        f"moetraffic {__version__}, {len(runs)} traces: {len(models)} of shipped "
        f"models ({', '.join(models)}) and {captures} virtual captures, {ranks[0]} to "
        f"{ranks[-1]} ranks, the last {most} iterations of the last layer served; base "
        f"seed {seed}. Reconfiguration takes {DELAY:.0%} of a port's mean exchange, "
        "packets have an eighth of a circuit's rate. Leaf-spine: oversubscription 2. "
        "Forecast: persistence. Completion over the lower bound is a geometric mean "
        "over traces, with Student's interval of the logarithms.",
        "",
        "| network | policy | traces | over bound | 95% interval | worst "
        "| regret, median | worst | planning [ms] |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in table.to_dict("records"):
        # adding 0 makes a negative zero positive
        regret, worst = (round(row[f"regret, {n}"], 4) + 0 for n in ("median", "worst"))
        shown = ["", ""] if np.isnan(regret) else [f"{regret:.1%}", f"{worst:.1%}"]
        lines.append(
            f"| {row['network']} | `{row['policy']}` | {row['traces']} | "
            f"{row['over bound']:.3g} | "
            f"{row['95% interval']} | {row['worst']:.3g} | {shown[0]} | {shown[1]} | "
            f"{row['planning [ms]']:.2g} |"
        )
    failures = [f"{run['made']}: {f}" for run in runs for f in run["failures"]]
    return "\n".join([*lines, *([""] if failures else []), *failures])


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--traces", type=int, default=8)
    asked.add_argument("--iterations", type=int, default=64, help="of a trace")
    asked.add_argument("--most", type=int, default=24, help="iterations served")
    asked.add_argument("--seed", type=int, help="drawn where it is not given")
    asked.add_argument("--scheduler-address", help="HOST:PORT; default: local cluster")
    asked.add_argument("--workers", type=int, default=2, help="of the local cluster")
    asked.add_argument("--json", type=Path, help="write scores to this file")
    asked.add_argument("--write", type=Path, metavar="PAGE", help="a Markdown page")
    told = asked.parse_args()
    seed = secrets.randbelow(2**31) if told.seed is None else told.seed
    settings = draw(told.traces, seed, told.iterations)
    with ExitStack() as stack:
        address = told.scheduler_address
        if not address:
            local = LocalCluster(
                n_workers=told.workers, threads_per_worker=1, dashboard_address=None
            )
            address = stack.enter_context(local).scheduler_address
        client = stack.enter_context(connected(address))
        tick = stack.enter_context(progress("traces", len(settings)))
        waiting = [client.submit(measure, s, told.most, pure=False) for s in settings]
        runs = []
        for number, done in enumerate(as_completed(waiting, loop=client.loop)):
            runs.append(done.result())
            tick(number + 1, runs[-1]["made"])
    runs.sort(key=lambda run: run["command"])
    text = markdown(summary(runs), runs, seed, told.most)
    print(text)
    if told.json:
        plain = {"version": __version__, "seed": seed, "runs": runs}
        save(told.json, plain)
    if told.write:
        replace(told.write, BEGIN, END, text)


if __name__ == "__main__":
    main()
