"""Does a replay's time follow the lower bound of the network that it runs on?

A run is captured on this machine; its expert all-to-alls are replayed as soon as
possible on hosts that are network namespaces, one rank a host, over real TCP, at
several rates of the hosts' links, and in two racks whose link carries a part of what
their hosts may send.  Beside the transfer time (from the last member's call on) stands
the least that the operations can take, one after another, on that network (port and
cut bounds of each one's matrix), and the wall time of iterations over their bound.

At one switch three controls remove causes one by one.  ``gloo-duplex`` has separate
connections for the two directions of each pair: gloo itself sends one direction after
the other where both are busy.  ``sockets-gloo`` exchanges the same bytes over plain
sockets (plain_sockets.py), without gloo, torch and replay, but as these do: a rank goes
on when its own exchange has ended, and sends when the receiver has announced itself.
With ``sockets`` all ranks begin together, without announcements; meanwhile the bytes on
the links are counted, headers and acknowledgments included, which are the rest that any
transport over TCP has (column ``wire``).  ``--exchange`` shows the first with two ranks
of which one sends, or both.  ``--commands N`` starts the same replay N times in place
of the controls, and counts the intervals that contain the ratio of another one.

Each rate has as many iterations as take about PASS_S, at least one.  Low rates leave
the processor idle: what is at 200 Mbit/s and not at 10 is not the network's.  Without
the rights to make namespaces it says so and measures nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections import defaultdict
from itertools import permutations, product
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import plain_sockets
from page import save
from rate_limited import Hosts, hosts, limit, ranks, sent_bytes

from moetraffic import Trace
from moetraffic.interop import import_files

HOSTS = 4
BURST = "32kb"  # well below an operation's bytes: a bucket's content passes at once
BACKENDS = ("gloo", "gloo-duplex")
SOCKETS = {"sockets-gloo": ["--as-gloo"], "sockets": []}
PASS_S = 4.0
MODEL = (
    *("--layers", "4", "--hidden", "128", "--heads", "4", "--sequence", "128"),
    *("--micro-batch", "8", "--experts", "8", "--ffn", "64"),
)


def captured(folder: Path, iterations: int) -> Path:
    """Expert all-to-alls of a run on real text, 4 ranks."""
    run, alone = folder / "run.h5", folder / "exchanges.h5"
    subprocess.run(
        [
            *(sys.executable, "-m", "moetraffic", "capture", "-o", str(run)),
            *("--nproc", str(HOSTS), "--iterations", str(iterations), *MODEL),
        ],
        check=True,
        capture_output=True,
    )
    with Trace.open(run) as trace:
        phased = np.array([bool(s.phase) for s in trace.sites], bool)
        exchanges = trace.find(operation="all_to_all")
        trace.select(exchanges[phased[trace.occurrences.site[exchanges]]]).save(alone)
    return alone


def iterations_within(trace: Path, rate: float) -> int:
    """Iterations whose bound at one switch is about PASS_S."""
    cells = byte_matrices(trace, None)
    with Trace.open(trace) as opened:
        count = len(np.unique(opened.occurrences.iteration))
    each_s = bounds_s(cells, rate).sum() / count
    return max(1, min(count, round(PASS_S / each_s)))


def byte_matrices(trace: Path, iterations: int | None) -> Any:
    """Bytes between different ranks of the all-to-alls, ``[n, W, W]`` int64."""
    with Trace.open(trace) as opened:
        when = np.unique(opened.occurrences.iteration)[:iterations]
        at = opened.find(operation="all_to_all")
        at = at[np.isin(opened.occurrences.iteration[at], when)]
        wire = opened.wire(at[np.lexsort((at, opened.occurrences.iteration[at]))])
    return wire * ~np.eye(HOSTS, dtype=bool)


def bounds_s(cells: Any, rate: float, between: float = np.inf) -> Any:
    """Bounds of byte matrices by ports, and by a link between two racks, ``[n]`` s."""
    ports = np.maximum(cells.sum(axis=2).max(axis=1), cells.sum(axis=1).max(axis=1))
    left, right = np.arange(HOSTS) < HOSTS // 2, np.arange(HOSTS) >= HOSTS // 2
    crossing = [
        cells[:, a][:, :, b].sum((1, 2)) for a, b in ((left, right), (right, left))
    ]
    return np.max([ports / rate, *(c / between for c in crossing)], axis=0) * 8e-6


def pair(folder: Path, senders: list[tuple[int, int]]) -> Path:
    """All-to-alls in which these pairs of source and destination alone have 1 MB."""
    lines = ["iteration,layer,phase,source,destination,bytes"]
    for at in np.ndindex(4, 4, HOSTS, HOSTS):
        iteration, layer, source, to = at
        nbytes = 1_000_000 * ((source, to) in senders)
        lines.append(f"{iteration},{layer},dispatch,{source},{to},{nbytes}")
    table, path = (folder / f"pair-{len(senders)}.{end}" for end in ("csv", "h5"))
    table.write_text("\n".join(lines) + "\n")
    _, merged = import_files([table])
    merged.trace.save(path)
    return path


def replayed(
    at: Hosts, trace: Path, network: dict[str, Any], port: int, *more: str
) -> Any:
    """Replay with a rank a host; the figures that rank 0 prints."""
    path = trace.with_name("network.json")
    path.write_text(json.dumps(network))
    words = [sys.executable, "-m", "moetraffic.replay", str(trace), "--json", *more]
    return json.loads(ranks(at.names, [*words, "--topology", str(path)], port))


def row(
    at: Hosts,
    trace: Path,
    name: str,
    rate: float,
    oversubscription: float,
    port: int,
    runs: int,
    iterations: int,
    backend: str = "gloo",
) -> dict[str, Any]:
    # two racks: what half of the hosts may send, over the link between the racks
    between = HOSTS / 2 * rate / oversubscription
    limit(at, rate, between_mbps=between, burst=BURST)
    network: dict[str, Any] = {"topology": "single", "capacity": f"{rate:g}Mbps"}
    if at.racks == 2:
        network |= {
            "topology": "leaf-spine",
            "leaves": 2,
            "spines": 1,
            "oversubscription": oversubscription,
        }
    how = ["--repeat", str(runs), "--backend", backend]
    how += ["--iterations", f"0:{iterations}"]
    told = replayed(at, trace, network, port, *how)
    data, tables = told["data"], told["tables"]
    every, cells = tables["operations"][0], byte_matrices(trace, iterations)
    (ratio,) = (
        row
        for row in tables["ratios"]
        if (row["by"], row["baseline"]) == ("all", "bound")
    )
    limits = (rate, between) if at.racks == 2 else (rate,)
    bound = float(bounds_s(cells, *limits).sum())
    return {
        "network": name,
        "backend": backend,
        "rate_mbps": rate,
        "operations": every["calls"],
        "verified": data["verified"],
        "network_bytes": data["bytes_between_ranks"],
        "measured_s": bound * ratio["ratio"],  # geometric mean over the runs
        "calls_s": every["call_total"],
        "wall_s": data["pass_s"],
        "waiting": every["waiting_in_calls"],
        "runs": runs,
        "bound_s": bound,
        "wall_ratio": data["pass_s"] / bound,
        "ratio": ratio["ratio"],
        "ratio_low": ratio["ratio_low"],
        "ratio_high": ratio["ratio_high"],
        "busbw_gbs": every["busbw"] / 1e9,
        "load": round(os.getloadavg()[0], 1),  # of all processes, on the cores
    }


def control(
    at: Hosts,
    trace: Path,
    name: str,
    rate: float,
    runs: int,
    iterations: int,
    backend: str,
) -> dict[str, Any]:
    """The same bytes over plain sockets at one switch."""
    limit(at, rate, burst=BURST)
    cells, path = byte_matrices(trace, iterations), trace.with_suffix(".npy")
    np.save(path, np.concatenate([cells[:1], *[cells] * runs]))
    before = sent_bytes(at)
    program = [sys.executable, plain_sockets.__file__, str(path), *SOCKETS[backend]]
    took = json.loads(ranks(at.names, program, 0))[1:]
    # every byte leaves its host, and then the switch
    payload = 2 * (cells.sum() * runs + cells[0].sum())
    measured, bound = sum(took) / runs, float(bounds_s(cells, rate).sum())
    return {
        "network": name,
        "backend": backend,
        "rate_mbps": rate,
        "operations": len(cells),
        "measured_s": measured,
        "runs": runs,
        "bound_s": bound,
        "ratio": measured / bound,
        "wire_ratio": (sent_bytes(at) - before) / float(payload),
        "load": round(os.getloadavg()[0], 1),
    }


def measure(
    rates: list[float],
    share: float,
    iterations: int,
    runs: int,
    *,
    exchange: bool = False,
    commands: int = 1,
) -> list[dict[str, Any]]:
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        with hosts(HOSTS) as at:  # before the capture: it takes long
            if exchange:
                traces = {
                    "one way": pair(Path(folder), [(0, 1)]),
                    "both ways": pair(Path(folder), [(0, 1), (1, 0)]),
                }
            else:
                traces = {"one switch": captured(Path(folder), iterations)}
            backends = BACKENDS[:1] * commands
            if commands == 1:
                backends = (*BACKENDS, *SOCKETS)
            cases = product(rates, traces.items(), backends)
            for number, (rate, (name, trace), backend) in enumerate(cases):
                span = iterations_within(trace, rate)
                if backend in SOCKETS:
                    one = control(at, trace, name, rate, runs, span, backend)
                else:
                    port = 21_000 + number
                    one = row(at, trace, name, rate, 1.0, port, runs, span, backend)
                rows.append(one)
                print(json.dumps(one), file=sys.stderr, flush=True)
        if exchange or not share:
            return rows
        with hosts(HOSTS, racks=2) as at:
            name = f"two racks, {share:g}:1"
            for number, rate in enumerate(rates):
                port = 22_000 + number
                span = iterations_within(trace, rate / share)
                rows.append(row(at, trace, name, rate, share, port, runs, span))
                print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    heads = f"{'Mbit/s':>7} {'transfer':>10} {'bound':>10} {'wall':>6} {'waiting':>8}"
    lines = [f"{'network':18} {'backend':12} {heads}  ratio"]
    for r in rows:
        interval, wall, waiting = "", "", ""
        if r.get("ratio_low") is not None:
            interval = f" ({r['ratio_low']:.3f} to {r['ratio_high']:.3f})"
        if r["backend"] in SOCKETS:
            interval = f", wire {r['wire_ratio']:.3f}"
        else:
            wall, waiting = f"{r['wall_ratio']:.3f}", f"{r['waiting']:.1%}"
        lines.append(
            f"{r['network']:18} {r['backend']:12} {r['rate_mbps']:7g} "
            f"{r['measured_s']:8.3f} s {r['bound_s']:8.3f} s {wall:>6} {waiting:>8}  "
            f"{r['ratio']:.3f}{interval}"
        )
    return "\n".join(lines + explained(rows) + agreement(rows))


def explained(rows: list[dict[str, Any]]) -> list[str]:
    """What each cause takes of the ratio at one switch, a line a rate."""
    by = {(r["network"], r["rate_mbps"], r["backend"]): r for r in rows}
    lines = []
    for network, rate in dict.fromkeys(key[:2] for key in by):
        if (network, rate, "sockets") not in by:
            continue
        gloo, duplex, as_gloo, plain = (
            by[network, rate, name]["ratio"] for name in (*BACKENDS, *SOCKETS)
        )
        wire = by[network, rate, "sockets"]["wire_ratio"]
        lines.append(
            f"{network}, {rate:g} Mbit/s: {gloo:.3f} = {wire:.3f} headers and "
            f"acknowledgments {plain - wire:+.3f} TCP {as_gloo - plain:+.3f} "
            f"announcements, and ranks ahead of others {duplex - as_gloo:+.3f} gloo "
            f"and replay {gloo - duplex:+.3f} one direction after the other"
        )
    return lines


def agreement(rows: list[dict[str, Any]]) -> list[str]:
    """How many intervals of repeated commands contain the ratio of another one."""
    lines = []
    same = defaultdict(list)
    for r in rows:
        same[r["network"], r["backend"], r["rate_mbps"]].append(r)
    for (network, backend, rate), group in same.items():
        pairs = list(permutations(group, 2))
        if pairs:
            inside = [a["ratio_low"] <= b["ratio"] <= a["ratio_high"] for a, b in pairs]
            overlap = [
                a["ratio_low"] <= b["ratio_high"] and b["ratio_low"] <= a["ratio_high"]
                for a, b in pairs
            ]
            lines.append(
                f"{network}, {backend}, {rate:g} Mbit/s: {len(group)} commands; in "
                f"{sum(inside)} of {len(pairs)} ordered pairs the first's interval has "
                f"the second's ratio, {sum(overlap) // 2} of {len(pairs) // 2} overlap"
            )
    return lines


def leave(number: int, _: object) -> NoReturn:
    raise SystemExit(128 + number)  # through every finally


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--rates", default="20,50,100", help="Mbit/s, with commas")
    asked.add_argument(
        "--oversubscription", type=float, default=0.0, help="0 for no second network"
    )
    asked.add_argument(
        "--exchange", action="store_true", help="two ranks, one way and both ways"
    )
    asked.add_argument("--commands", type=int, default=1, help="of the same replay")
    asked.add_argument("--iterations", type=int, default=4)
    asked.add_argument("--runs", type=int, default=3, help="timed passes")
    asked.add_argument("--json", type=Path, help="write the results to this file")
    told = asked.parse_args()
    signal.signal(signal.SIGTERM, leave)
    try:
        rows = measure(
            [float(r) for r in told.rates.split(",")],
            told.oversubscription,
            told.iterations,
            told.runs,
            exchange=told.exchange,
            commands=told.commands,
        )
    except (OSError, subprocess.SubprocessError) as error:
        save(told.json, {"skipped": f"no rate-limited namespaces here: {error}"})
        return
    print(table(rows))
    if told.json:
        save(told.json, {"rows": rows})


if __name__ == "__main__":
    main()
