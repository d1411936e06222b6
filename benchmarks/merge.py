"""Time and memory of merging the records of all ranks, and of saving the trace.

Ranks of one expert-parallel group record a routing and its four all-to-alls for each
layer and iteration.  Token counts are uniform random numbers, which compress less than
those of a training run.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from pathlib import Path

import numpy as np
from page import save

from moetraffic.trace import PHASES, ROUTING, Group, Meta, Site
from moetraffic.trace.merge.merging import merge_records
from moetraffic.trace.merge.rank_record import CALL, STEP, RankRecord
from moetraffic.trace.model import Source

ROW_BYTES = 4096


def sites_of(layers: int, experts: int) -> tuple[Site, ...]:
    """Return the call sites in the order of a step's calls."""

    def exchange(layer: int, phase: str) -> Site:
        return Site(
            group=0,
            operation="all_to_all",
            phase=phase,
            layer=layer,
            direction="backward" if "grad" in phase else "forward",
            dtype="bfloat16",
            row_bytes=ROW_BYTES,
            source=Source.ANNOTATED,
        )

    forward, backward = list[Site](), list[Site]()
    for layer in range(layers):
        forward.append(Site(group=0, operation=ROUTING, layer=layer, experts=experts))
        forward += [exchange(layer, phase) for phase in PHASES[:2]]
        backward = [*(exchange(layer, phase) for phase in PHASES[2:]), *backward]
    return (*forward, *backward)


def records_of(
    ranks: int, layers: int, experts: int, iterations: int
) -> list[RankRecord]:
    """Build the records of all ranks."""
    rng = np.random.default_rng(0)
    count = iterations * layers
    demand = rng.integers(0, 64, (count, ranks, experts), np.int16)
    sites = sites_of(layers, experts)
    calls = np.zeros((iterations, len(sites)), CALL)
    calls["iteration"] = np.arange(iterations)[:, None]
    calls["site"] = np.arange(len(sites))
    layer = np.array([site.layer for site in sites])
    calls["payload"] = np.arange(iterations)[:, None] * layers + layer
    routed = np.array([site.operation == ROUTING for site in sites])
    calls["transposed"] = [s.phase in ("combine", "dispatch_grad") for s in sites]
    order = np.cumsum(~routed) - 1 + np.arange(iterations)[:, None] * (~routed).sum()
    calls["sequence"] = np.where(routed, -1, order)
    calls["link"] = -1
    calls["issue"] = np.arange(calls.size).reshape(calls.shape) * 10_000
    calls["start"], calls["end"] = calls["issue"] + 1_000, calls["issue"] + 9_000
    steps = np.zeros(iterations, STEP)
    steps["iteration"], steps["kind"] = np.arange(iterations), "train"
    steps["source"], steps["loss"], steps["tokens"] = Source.ANNOTATED, 2.0, 4096
    sent = demand.reshape(count, ranks, ranks, -1).sum(axis=3, dtype=np.int32)
    sent *= ROW_BYTES
    records = []
    for rank in range(ranks):
        noise = rng.integers(0, 5_000, calls.size)
        own = calls.reshape(-1).copy()
        for name in ("issue", "start", "end"):
            own[name] += noise
        copies = np.full((count, 2, experts), -1, np.int16)
        copies[:, 0] = demand[:, rank]
        records.append(
            RankRecord(
                rank=rank,
                meta=Meta(world=ranks, ep=ranks, dp=ranks),
                node=f"node{rank // 8}",
                groups=(Group(kind="ep", ranks=tuple(range(ranks))),),
                sites=sites,
                calls=own,
                steps=steps,
                splits={ranks: np.stack([sent[:, rank], sent[:, :, rank]], axis=1)},
                demand={experts: copies},
            )
        )
    return records


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--ranks", type=int, default=64)
    arguments.add_argument("--layers", type=int, default=8)
    arguments.add_argument("--experts", type=int, default=256)
    arguments.add_argument("--iterations", type=int, default=500)
    arguments.add_argument("--json", type=Path, help="write the results to this file")
    given = arguments.parse_args()
    shape = given.ranks, given.layers, given.experts, given.iterations
    with tempfile.TemporaryDirectory() as folder:
        records = [records_of(*shape)]  # released while they are merged
        calls = sum(len(record.calls) for record in records[0])
        began, process_s = time.perf_counter(), time.process_time()
        merged = merge_records(records.pop(), "benchmark")
        merging_s = time.perf_counter() - began
        merged.trace.save(Path(folder) / "run.h5")
        total_s = time.perf_counter() - began
        process_s = time.process_time() - process_s
        size = (Path(folder) / "run.h5").stat().st_size
    assert not merged.missing
    assert not merged.contradictions
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    save(
        given.json,
        {
            "calls": calls,
            "seconds_to_merge": merging_s,
            "seconds_to_save": total_s - merging_s,
            "calls_per_second": calls / total_s,
            "processor_seconds": process_s,
            "peak_rss_bytes": peak,
            "file_bytes": size,
        },
    )


if __name__ == "__main__":
    main()
