"""Memory estimates of the runs that the UC Merced poster marks as out of memory.

The poster names no GPU, so the question is turned round: with what a run of a workload
must hold, is there a capacity that fits every run that ran and none that did not?

A rank of data parallelism holds 16 B a parameter (fp16 weight and gradient, fp32
weight and Adam's two moments; Rajbhandari et al., arXiv 1910.02054, section 3.1) and,
for a micro-batch of b samples, ``s b h (34 + 5 a s / h)`` B a layer and
``4 s b (h + V)`` B at the end (Korthikanti et al., arXiv 2205.05198, equation 2 and
section 4.3); an attention that does not keep its scores has no ``5 a s / h``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moetraffic.patterns.parameters import parameter_count
from moetraffic.patterns.presets import preset
from moetraffic.tables import Table

if TYPE_CHECKING:
    from .merced import Cell

MODELS = {
    "T5-Large": "t5-large",
    "BERT-Large": "bert-large",
    "GPT-2-Large": "gpt2-large",
    "GPT-2-Medium": "gpt2-medium",
}
"""The poster's names and our presets, whose sequence lengths are assumed."""

STATE_BYTES = 16


def needed_bytes(workload: str, samples: float, *, scores: bool) -> float:
    """Estimate the peak memory of a data-parallel rank, bytes.

    Parameters
    ----------
    workload
        One of MODELS.
    samples
        Of the micro-batch.
    scores
        Whether attention keeps its scores for backward.
    """
    shape = preset(MODELS[workload]).model
    h, heads = shape.hidden, shape.heads

    def stack(layers: int, sequence: int) -> float:
        kept = 5 * heads * sequence / h if scores else 0.0
        return layers * sequence * h * (34 + kept)

    if shape.two_stacks:
        sequence = shape.target_sequence
        decoder = shape.layers - shape.encoder_layers
        activations = stack(shape.encoder_layers, shape.sequence)
        activations += stack(decoder, sequence)
    else:
        sequence = shape.sequence
        activations = stack(shape.layers, sequence)
    activations += 4 * sequence * (h + shape.vocabulary)
    return STATE_BYTES * parameter_count(shape).total + samples * activations


def memory_table(cells: tuple[Cell, ...]) -> tuple[Table, str]:
    """Compare estimated memory with the runs published as out of memory."""
    chosen = [c for c in cells if c.scaling == "larger_batch" and c.protocol == "RDMA"]
    needed = [
        [needed_bytes(c.workload, c.samples, scores=kept) / 1e9 for c in chosen]
        for kept in (True, False)
    ]
    said = []
    for sizes, name in zip(
        needed, ("that keeps its scores", "that does not"), strict=True
    ):
        pairs = list(zip(chosen, sizes, strict=True))
        low = max(size for cell, size in pairs if not cell.oom)
        high = min(size for cell, size in pairs if cell.oom)
        said.append(
            f"with an attention {name} the largest run that ran needs {low:.0f} GB and "
            f"the smallest that did not {high:.0f} GB"
            + (", which no capacity parts" if low >= high else "")
        )
    table = Table(
        title="The larger batches: what a GPU would have to hold",
        columns=("workload", "cell", "published", "scores kept", "scores not kept"),
        rows=[
            (cell.workload, cell.name, "OOM" if cell.oom else "ran", kept, not_kept)
            for cell, kept, not_kept in zip(chosen, *needed, strict=True)
        ],
        unit="GB",
    )
    return table, (
        "which runs were out of memory, because GPUs, precision, sequence lengths and "
        "micro-batches are not published; assuming our presets' lengths, the whole "
        f"share of a GPU as one micro-batch and fp16 with Adam, {said[0]}; {said[1]}"
    )
