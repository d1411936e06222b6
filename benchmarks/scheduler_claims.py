"""Published gains of FAST and EPLB beside those on generated traffic.

Usage: python benchmarks/scheduler_claims.py [--matrices 4] [--seed N]

FAST: 4 hosts of 8 ranks, 450 GB/s inside and 50 GB/s a NIC as 4 x 8 H200, one switch.
"All at once" has ideal congestion control, so it has no incast losses, which NCCL and
RCCL have.  EPLB: 32 ranks, 64 experts and 32 redundant replicas, planned
anew every 10 iterations from the last known one.  The seed is drawn if none is given.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from page import save

from moetraffic import evaluate, generate_trace
from moetraffic.fabric import Hosts, single_switch
from moetraffic.policies.cluster import Cluster
from moetraffic.policies.packets import PacketNetwork
from moetraffic.policies.series import ExchangeSeries, byte_series

RANKS = 32
PRESETS = ("top1-unbalanced-late", "top2-balanced-late", "top8-lossfree-late")


def drawn(rng: np.random.Generator, skew: float) -> ExchangeSeries:
    """Draw 16 matrices of FAST's kinds: uniform entries, or a shuffled Zipf law."""
    made = []
    for _ in range(16):
        entries = rng.uniform(size=RANKS * RANKS)
        if skew:
            entries = rng.permutation(np.arange(1.0, RANKS * RANKS + 1) ** -skew)
        made.append(entries.reshape(RANKS, RANKS) * 1e6 / entries.mean())
    return ExchangeSeries(
        name="drawn",
        phase="dispatch",
        iterations=np.arange(16),
        layers={0: np.array(made)},
    )


def gains_of_fast(series: ExchangeSeries, most: int) -> list[float | list[float]]:
    """Return a row: two baselines over FAST, FAST over the bound and with old plans."""
    hosts = Hosts(number=4, ranks=8, nic_bytes_s=50e9, inside_bytes_s=450e9)
    network = PacketNetwork(network=single_switch(hosts))
    result = evaluate(
        series,
        ["fast", "all-at-once", "shifted-rounds"],
        networks={"hosts": network},
        forecasters=["persistence"],
        most=most,
    )
    if failures := result.data["failures"]:
        raise SystemExit(" ".join(failures))
    rows = result.rows("scores")
    by = {(row["policy"], row["forecaster"]): n for n, row in enumerate(rows)}
    times = result.data["by_iteration_s"]
    fast = by["fast", "oracle"]
    gains: list[float | list[float]] = [
        (np.array(times[by[name, "none"]]) / times[fast]).tolist()
        for name in ("all-at-once", "shifted-rounds")
    ]
    stale = rows[by["fast", "persistence"]]["completion_mean_s"]
    return [*gains, rows[fast]["over_bound"], stale / rows[fast]["completion_mean_s"]]


def gains_of_eplb(preset: str, seed: int) -> list[float | list[float]]:
    """Return a row: max/mean load contiguous, EPLB as planned, EPLB with the truth."""
    trace = generate_trace(preset, iterations=64, ranks=RANKS, experts=64, seed=seed)
    result = evaluate(
        trace,
        ["contiguous", "eplb"],
        networks={"cluster": Cluster(rate_bytes_s=50e9, replicas=32)},
        forecasters=["persistence"],
        hold=10,
        layers=trace.layers[:1],
    )
    by = {(row["policy"], row["forecaster"]): row for row in result.rows("scores")}
    plain = by["contiguous", "none"]
    planned = [by["eplb", name] for name in ("persistence", "oracle")]
    took = plain["completion_mean_s"]
    return [
        *(row["load_imbalance"] for row in (plain, *planned)),
        *(took / row["completion_mean_s"] for row in planned),
    ]


def printed(name: str, cells: list[float | list[float]]) -> None:
    """Print a row; several values are their mean and range."""
    text = [
        f"{np.mean(c):.2f} ({min(c):.2f} to {max(c):.2f})"
        if isinstance(c, list)
        else f"{c:.2f}"
        for c in cells
    ]
    print(f"| {name} | {' | '.join(text)} |", flush=True)


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--matrices", type=int, default=4)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--json", type=Path, help="write the results to this file")
    given = parser.parse_args()
    fast, eplb = {}, {}
    seed = given.seed
    if seed is None:
        seed = int(np.random.SeedSequence().generate_state(1)[0])
    rng = np.random.default_rng(seed)
    print(f"Seed {seed}; {given.matrices} matrices each, the range in parentheses.\n")
    print("| traffic | all at once / FAST | spread-out / FAST | FAST / bound | stale |")
    print("|---|---|---|---|---|")
    for name, skew in (("random", 0.0), ("Zipf 0.8", 0.8)):
        fast[name] = gains_of_fast(drawn(rng, skew), given.matrices)
        printed(name, fast[name])
    for preset in PRESETS:
        trace = generate_trace(
            preset, iterations=16, ranks=RANKS, experts=64, seed=seed
        )
        series = byte_series(trace, layers=trace.layers[:1])
        fast[preset] = gains_of_fast(series, given.matrices)
        printed(preset, fast[preset])
    print("\n| traffic | max/mean | EPLB | EPLB, truth | gain | gain, truth |")
    print("|---|---|---|---|---|---|")
    for preset in PRESETS:
        eplb[preset] = gains_of_eplb(preset, seed)
        printed(preset, eplb[preset])
    if given.json:
        save(given.json, {"seed": seed, "fast": fast, "eplb": eplb})


if __name__ == "__main__":
    main()
