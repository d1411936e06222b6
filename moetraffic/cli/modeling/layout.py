"""Options of a parallel layout, the same in ``pattern`` and ``estimate``."""

from __future__ import annotations

from collections.abc import Mapping

from moetraffic.patterns.layer_calls import CONTEXTS
from moetraffic.patterns.layouts.schedules import SCHEDULES
from moetraffic.report.console.options import Setting

LAYOUT: Mapping[str, str | Setting] = {
    "pp": "Number of pipeline stages.",
    "tp": "Number of tensor-parallel ranks of a layer.",
    "dp": "Number of data-parallel ranks, those of --ep included.",
    "ep": "Number of expert-parallel ranks.",
    "etp": Setting("Number of tensor-parallel ranks of an expert.", shown="tp"),
    "cp": "Number of context-parallel ranks, which share a sequence.",
    "virtual": Setting(
        "Number of virtual pipeline stages per rank (interleaved 1F1B).",
        "--virtual-stages",
    ),
    "schedule": f"Pipeline schedule: {', '.join(SCHEDULES)}.",
    "zero": "ZeRO stage: 0, 1, 2 or 3.",
    "shard": Setting(
        "Number of replicas among which ZeRO shards; the others hold copies.",
        shown="all",
    ),
    "context": f"Attention over context-parallel ranks: {', '.join(CONTEXTS)}.",
    "ulysses": Setting(
        "Number of neighboring context-parallel ranks that exchange heads for tokens "
        "(Ulysses); the others form rings.",
        shown="none, or all with --context all-to-all",
    ),
    "sequence_parallel": Setting(
        "Use Megatron's sequence parallelism over the tensor-parallel ranks.",
        "--sequence-parallel",
    ),
}
"""Help texts of fields that a Parallelism and a Configuration share."""
