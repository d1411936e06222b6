"""Are the rates of unequal hosts found by a replay, and is a slow host named?

Hosts are network namespaces whose links token buckets limit, one rank a host.  Each
setting draws the rate of every host: *unequal*, log-uniform between the ends of
``--between``, or *one slow*, in which all have one rate but one, which has a quarter to
a half of it.  A run with random all-to-alls is replayed with ``--ports``, and each
port's rate is compared with its link's, less headers (a token bucket counts the 66 of
1514 bytes of Ethernet, IP and TCP).  Beside it stands the rank that arrives last most
often, which is what a replay without ``--ports`` names.

Without the rights to make namespaces it says so and measures nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from page import save
from rate_limited import hosts, limit, ranks

from moetraffic.interop import import_files

HOSTS = 4
ITERATIONS = 6
BURST = "32kb"
PAYLOAD = 1448 / 1514


def exchanges(folder: Path, rng: np.random.Generator) -> Path:
    """Write a trace of uneven all-to-alls, some 400 kB a rank."""
    lines = ["iteration,layer,phase,source,destination,bytes"]
    for at in np.ndindex(ITERATIONS, 4, HOSTS, HOSTS):
        iteration, layer, source, to = at
        nbytes = int(rng.integers(50_000, 150_000))
        lines.append(f"{iteration},{layer},dispatch,{source},{to},{nbytes}")
    table, path = folder / "exchanges.csv", folder / "exchanges.h5"
    table.write_text("\n".join(lines) + "\n")
    _, merged = import_files([table])
    merged.trace.save(path)
    return path


def setting(rng: np.random.Generator, kind: str, low: float, high: float) -> Any:
    """Rates of the hosts, Mbit/s, and the slow one, -1 for none."""
    if kind == "unequal":
        drawn = np.exp(rng.uniform(np.log(low), np.log(high), HOSTS))
        return drawn.round(1).tolist(), -1
    rate = float(np.exp(rng.uniform(np.log(2 * low), np.log(high))))
    rates, slow = [round(rate, 1)] * HOSTS, int(rng.integers(HOSTS))
    rates[slow] = round(rate * float(rng.uniform(0.25, 0.5)), 1)
    return rates, slow


def measure(
    kind: str, rates: list[float], slow: int, trace: Path, port: int
) -> dict[str, Any]:
    """Replay on hosts of these rates; errors of the rates found."""
    with hosts(HOSTS) as at:
        limit(at, 0, rates_mbps=rates, burst=BURST)
        words = [sys.executable, "-m", "moetraffic.replay", str(trace), "--json"]
        more = ["--ports", "--verify", "none"]
        document = json.loads(ranks(at.names, [*words, *more], port))
    tables = document["tables"]
    errors = {
        f"{row['rank']} {way}s": row[way] / (rates[row["rank"]] * PAYLOAD * 1e6 / 8) - 1
        for row in tables["ports"]
        for way in ("send", "receive")
    }
    # a port that is faster than all others is seen as fast as these
    second = sorted(rates)[-2]
    known = [e for key, e in errors.items() if rates[int(key.split()[0])] <= second]
    every = tables["operations"][0]
    return {
        "kind": kind,
        "rates_mbps": rates,
        "slow": slow,
        "named": sorted(row["rank"] for row in tables["ports"] if row["slow"]),
        "last_rank": every["last_rank"],
        "errors": errors,
        "median_error": float(np.median(np.abs(known))),
        "worst_error": float(max(map(abs, known))),
        "load": round(os.getloadavg()[0], 1),
    }


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--between", default="30,200", help="Mbit/s, with a comma")
    asked.add_argument("--settings", type=int, default=6, help="of each kind")
    asked.add_argument("--seed", type=int, default=None)
    asked.add_argument("--json", type=Path, help="write the results to this file")
    told = asked.parse_args()
    seed = secrets.randbits(32) if told.seed is None else told.seed
    rng = np.random.default_rng(seed)
    low, high = (float(end) for end in told.between.split(","))
    rows = []
    try:
        with tempfile.TemporaryDirectory() as folder:
            path = exchanges(Path(folder), rng)
            for number in range(2 * told.settings):
                kind = ("unequal", "one slow")[number % 2]
                rates, slow = setting(rng, kind, low, high)
                rows.append(measure(kind, rates, slow, path, 23_000 + number))
                print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    except (OSError, subprocess.SubprocessError) as error:
        save(told.json, {"skipped": f"no rate-limited namespaces here: {error}"})
        return
    slow_rows = [r for r in rows if r["slow"] >= 0]
    found = {
        "seed": seed,
        "rows": rows,
        "median_error": float(np.median([r["median_error"] for r in rows])),
        "worst_error": max(r["worst_error"] for r in rows),
        "bound": 0.1,
        "slow_named": sum(r["named"] == [r["slow"]] for r in slow_rows),
        "last_is_slow": sum(r["last_rank"] == r["slow"] for r in slow_rows),
        "slow": len(slow_rows),
    }
    save(told.json, found)


if __name__ == "__main__":
    main()
