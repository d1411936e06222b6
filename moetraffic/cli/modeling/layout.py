"""Options of a parallel layout, the same in ``pattern`` and ``estimate``, and those of
a configuration, which ``estimate`` has."""

from __future__ import annotations

from collections.abc import Mapping

from moetraffic.patterns.layouts.configuration import Configuration
from moetraffic.patterns.layouts.parallelism import CONTEXTS, DISPATCHERS, RECOMPUTE
from moetraffic.patterns.layouts.schedules import SCHEDULES
from moetraffic.report.console.options import Setting, field_options

LAYOUT: Mapping[str, str | Setting] = {
    "pp": "Number of pipeline stages.",
    "tp": "Number of tensor-parallel ranks of a layer; a model with experts then needs "
    "--sequence-parallel.",
    "dp": "Number of data-parallel ranks, those of --ep included.",
    "ep": "Number of expert-parallel ranks.",
    "etp": Setting("Number of tensor-parallel ranks of an expert.", shown="tp"),
    "cp": "Number of context-parallel ranks, which share a sequence.",
    "virtual": Setting(
        "Number of virtual pipeline stages per rank (interleaved 1F1B).",
        "--virtual-stages",
    ),
    "embedding_layers": "Number of layers that the embedding counts as where layers "
    "are divided among stages (Megatron-LM and torchtitan: 0 or 1).",
    "head_layers": "Number of layers that the output layer and the loss count as.",
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
    "dispatcher": f"How tokens travel to experts: {', '.join(DISPATCHERS)} (once for "
    "each node).",
    "node_limit": Setting(
        "Number of nodes that the experts of a token lie on, for deduplicated tokens; "
        "0: any.",
        shown="any",
        rule={"min": 0},
    ),
    "scatter_gather": Setting(
        "Each tensor-parallel rank sends its part of activations to the next stage, "
        "which gathers them (Megatron-LM).",
        "--scatter-gather",
    ),
    "recompute": f"Activation recomputation: {', '.join(RECOMPUTE)}.",
    "sequence_parallel": Setting(
        "Use Megatron's sequence parallelism over the tensor-parallel ranks.",
        "--sequence-parallel",
    ),
    "dtype": Setting("Data type of parameters and activations.", kind=str),
    "dispatch_dtype": Setting(
        "Data type of tokens sent to experts, such as float8 (with a scale per 128 "
        "elements); what experts return has --dtype.",
        shown="as dtype",
        kind=str,
    ),
    "gradient_dtype": Setting(
        "Data type of reduced gradients, or bytes of an element.",
        shown="float32 or dtype",
        kind=str,
    ),
}
"""Options of a parallelism in every verb."""

MICRO_BATCH = Setting(
    "Number of sequences per replica in one forward pass.",
    shown="the preset's",
    kind=int | None,
    default=None,
)


def usual_micro_batches(pp: int, schedule: str) -> int:
    """Micro-batches of an iteration where none are asked for: as few as fill the
    pipeline, in every verb.

    Examples
    --------
    >>> usual_micro_batches(4, "1f1b"), usual_micro_batches(4, "dualpipe")
    (4, 8)
    """
    return pp * (2 if schedule == "dualpipe" else 1)


ESTIMATED = field_options(
    Configuration,
    "Parallelism and batch",
    {
        **LAYOUT,
        "micro_batch": MICRO_BATCH,
        "fp8": Setting("Multiply layers' weights in 8 bits.", "--fp8"),
        "fused_attention": Setting(
            "Fused attention (FlashAttention), without stored scores.",
            shown="fused on A100 and newer",
            kind=bool | None,
            default=None,
        ),
        "state_bytes": Setting(
            "Bytes of optimizer states per parameter: 12 for Adam with a master copy, "
            "8 without.",
            kind=float,
            rule={"min": 0},
        ),
        "prefetch": "Number of layers whose parameters ZeRO 3 gathers ahead.",
        "imbalance": Setting(
            "Load of the busiest expert-parallel rank, relative to the mean.",
            kind=float,
            rule={"min": 1},
        ),
    },
)
"""Options of a configuration's parallelism, batch and storage, for ``estimate``."""
