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
    rows: list[tuple[object, ...]] = []
    for cell in chosen:
        rows.append(
            (
                cell.workload,
                cell.name,
                "OOM" if cell.oom else "ran",
                needed_bytes(cell.workload, cell.samples, scores=True) / 1e9,
                needed_bytes(cell.workload, cell.samples, scores=False) / 1e9,
            )
        )
    said = []
    for scores, name in ((True, "that keeps its scores"), (False, "that does not")):
        ran, not_ran = (
            [
                needed_bytes(c.workload, c.samples, scores=scores) / 1e9
                for c in chosen
                if c.oom is oom
            ]
            for oom in (False, True)
        )
        low, high = max(ran), min(not_ran)
        said.append(
            f"with an attention {name} the largest run that ran needs {low:.0f} GB and "
            f"the smallest that did not {high:.0f} GB"
            + (", which no capacity parts" if low >= high else "")
        )
    table = Table(
        title="The larger batches: what a GPU would have to hold",
        columns=("workload", "cell", "published", "scores kept", "scores not kept"),
        rows=tuple(rows),
        unit="GB",
    )
    return table, (
        "which runs were out of memory, because GPUs, precision, sequence lengths and "
        "micro-batches are not published; assuming our presets' lengths, the whole "
        f"share of a GPU as one micro-batch and fp16 with Adam, {said[0]}; {said[1]}"
    )
