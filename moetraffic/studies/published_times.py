"""Published iteration times of layouts, as arrays beside their configurations.

Each table has its own layout, software and network, from its paper or page;
``moetraffic/data`` has the figures and their sources.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from moetraffic import data
from moetraffic.arrays import Float64
from moetraffic.patterns import Layout, ModelShape, preset
from moetraffic.timemodel import (
    A100,
    ATTENTION,
    H100,
    Gpu,
    NodeLinks,
    System,
    Traffic,
    estimate,
    operations,
    traffic,
)
from moetraffic.workload.presets import GPT

NICS = {
    "selene": 200e9,  # SC'21, section 5; arXiv 2205.05198, section 6
    "vtrain": 100e9,  # 800 Gb/s: VIA-Research/vTrain, its configurations
    "dgx-h100": 400e9,  # NVIDIA's data sheet, eight of 400 Gb/s
    "mpt-a100": 200e9,  # mosaicml/llm-foundry, benchmarking/README.md
    "mpt-h100": 400e9,  # assumed: not stated
}
"""Bytes/s of the NICs of a node by cluster, nominal: what an estimate is given of the
network.  Large collectives get 85% of them, which is assumed, but for SC'21."""

SELENE = {"pp": 892e9 / (2 * 8 * 6), "other": 12.9e12 / (2 * 8 * 64)}
"""Bytes/s that a NIC of 25e9 reached in SC'21's own training, of 1T on 3072 GPUs
(t = 8, p = 64, d = 6), by kind of traffic.  Section 5.9 has the effective bisection
bandwidths: of the all-reduces of data-parallel replicas, whose t p rings cross from
one half to the other and back, 12.9 TB/s; of pipeline stages, of which t d neighbors
send across, forward and back, 892 GB/s.  One way alone would be 25.2e9 a NIC."""

FIELDS = {
    **{"tp": "t", "pp": "p", "dp": "d", "cp": "cp", "ep": "ep", "virtual": "v"},
    **{"micro_batch": "microbatch", "global_batch": "batch"},
}
"""Columns of the tables by field of a configuration."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Published iteration times, with what they were measured on."""

    name: str
    labels: tuple[str, ...]
    config: Layout  # arrays [n]
    times: Float64  # [n] s
    gpu: Gpu = A100
    nics: str = "selene"  # of NICS
    reached: Mapping[str, float] = field(default_factory=dict)  # of a NIC, measured
    overlap: Mapping[str, Any] = field(default_factory=dict)
    # calls that the software has in place of the usual, and seconds beside them
    changed: Callable[[Layout, System], tuple[list[Traffic], Any]] | None = None

    def system(self, gpu: Gpu | None = None) -> System:
        """Return nodes of eight GPUs of these measurements, with another GPU's fit."""
        gpu = gpu or self.gpu
        links = NodeLinks.nominal(
            gpus=8, inside_bytes_s=gpu.inside_bytes_s, nic_bytes_s=NICS[self.nics]
        )
        of_kinds = {
            kind: replace(links, nic_bytes_s=8 * rate)
            for kind, rate in self.reached.items()
        }
        return System.of_gpu(gpu, of_kinds or links, overlap=self.overlap)

    def errors(self, gpu: Gpu | None = None) -> Float64:
        """``[n]`` relative errors of the estimates."""
        system, rows, more = self.system(gpu), None, 0.0
        if self.changed is not None:
            rows, more = self.changed(self.config, system)
        found = estimate(self.config, system, moved=rows, strict=False)
        return np.asarray((found.iteration + more) / self.times - 1)

    @property
    def utilization(self) -> Float64:
        """``[n]`` FLOP of a mean stage, recomputed ones too, over time and peak."""
        done = operations(self.config).all * self.config.accumulation
        fp8 = np.where(self.config.fp8, self.gpu.fp8_speed, 1.0)
        return np.asarray(done / self.times / (fp8 * self.gpu.peak_flops))


def rows_of(name: str) -> pd.DataFrame:
    """Return a published table, its columns of numbers as float64."""
    frame = pd.DataFrame(list(data.published(name)))
    for column in frame:
        with suppress(ValueError):
            frame[column] = frame[column].astype(float)
    return frame


def gpt(row: Any) -> ModelShape:
    """Return the GPT of a row, by default of 2048 tokens and 51,200 words."""
    names = ("layers", "hidden", "heads")
    sizes: dict[str, Any] = {name: int(getattr(row, name)) for name in names}
    sizes["sequence"] = int(getattr(row, "seq", 2048))
    return ModelShape(**sizes, vocabulary=int(getattr(row, "vocab", 51_200)), **GPT)


def measured(
    name: str,
    rows: pd.DataFrame,
    label: str,
    times: Any,
    fixed: Mapping[str, Any],
    **on: Any,
) -> Measured:
    """Make a table of its rows: ``fixed`` are fields that are the same in all, or
    arrays; ``label`` is formatted with each row, ``on`` are fields of Measured."""
    sizes = {f: rows[c].to_numpy(float) for f, c in FIELDS.items() if c in rows}
    models = None if "model" in fixed else [gpt(row) for row in rows.itertuples()]
    return Measured(
        name=name,
        labels=tuple(label.format(row) for row in rows.itertuples()),
        config=Layout(**{"model": models, **sizes, **fixed}),
        times=np.asarray(times, float),
        **on,
    )


def gathers(layout: Layout, _: System) -> tuple[list[Traffic], float]:
    """Traffic without the gather of a layer's inputs in backward, which hides under a
    matrix product (arXiv 2205.05198, section 4.2.2): four of six are left."""
    share = np.where(np.asarray(layout.sequence_parallel) > 0, 4 / 6, 1.0)
    return [
        replace(row, calls=row.calls * share)
        if (row.kind, row.collective) == ("tp", "all_gather")
        else row
        for row in traffic(layout)
    ], 0.0


ENTRY_S = 2.7e-6
"""Of the host for a tensor of a list: measured on a core of an AMD EPYC (PyTorch 2)."""

PASSES = 4
"""Times that a buffer passes through memory: filled with zeros, copied (read and
written), read for a norm; or divided by the ranks (read and written) and copied."""


def lists(layout: Layout, system: System) -> tuple[list[Traffic], Float64]:
    """Traffic of DeepSpeed's ZeRO 3 in SC'21, and the seconds of its lists of tensors.

    Versions up to 0.5.4 gather each weight matrix (four of a layer; what is below 1e5
    is kept), once more in recomputation, by collectives on a list with a tensor for
    each rank, which PyTorch 1.8 copies one by one (``partition_parameters.py``,
    ``_allgather_param``; ``ProcessGroupNCCL.cpp``).  Nothing overlaps: each gather
    waits for the device (DeepSpeed, pull request 1188).
    """
    c, rows, more = layout.arrays(), [], np.zeros(layout.shape)
    sharded, units = c.zero == 3, 4 * c.stage_layers
    for row in traffic(layout):
        if row.kind == "dp" and row.point in ("before_forward", "before_backward"):
            size, again = c.element_bytes, 1 + (row.point == "before_backward")
        elif row.kind == "dp" and row.point == "after_backward":
            size, again = c.gradient_bytes, 1
        else:
            rows.append(row)
            continue
        buffer = np.where(sharded, c.stage_held[0] / units * size, row.buffer)
        calls = np.where(sharded, row.calls * 4 * again, row.calls)
        rows.append(replace(row, buffer=buffer, calls=calls))
        each = row.ranks * (ENTRY_S + A100.start_s)
        each = each + PASSES * buffer / system.memory_bytes_s
        more = more + np.where(sharded, calls * each, 0.0)
    return rows, more


MEGATRON: Mapping[str, Any] = {
    # SC'21, section 4.1; Megatron-LM's default
    **{"recompute": "full", "dtype": "float16", "scatter_gather": True},
}


def sc21_table1(rows: slice = slice(None)) -> Measured:
    """Return table 1 of SC'21: ten models on 32 to 3072 A100s."""
    c = rows_of("megatron_sc21_table1")[rows].rename(columns={"v_interleave": "v"})
    label, times = "{0.params_B:g}B on {0.gpus:g}", c.iter_time_s_derived
    return measured("SC'21, table 1", c, label, times, MEGATRON, reached=SELENE)


def sc21_table2() -> Measured:
    """Return table 2 of SC'21: ZeRO-3 beside tensor and pipeline parallelism.

    The FLOP a GPU that it prints are turned into times by equation 3.
    """
    c = rows_of("megatron_sc21_table2")
    sharded = (c.method == "zero3").to_numpy()
    c = c.assign(d=c.gpus / (c.t * c.p), way=np.where(sharded, "ZeRO-3", "PTD"))
    flop = 96 * c.batch * 2048 * c.layers * c.hidden**2
    flop = flop * (1 + 2048 / (6 * c.hidden) + 51_200 / (16 * c.layers * c.hidden))
    times = flop / (c.gpus * c.tflops_per_gpu * 1e12)
    fixed = {**MEGATRON, "zero": np.where(sharded, 3, 0)}
    label, on = "{0.way} {0.params_B:g}B on {0.gpus:g}", {"changed": lists}
    return measured("SC'21, table 2", c, label, times, fixed, reached=SELENE, **on)


def korthikanti_table5() -> Measured:
    """Return table 5 of arXiv 2205.05198: recomputation of activations.

    Its Megatron-LM sends the all-reduces of backward (with sequence parallelism the
    reduce-scatters) beside products of weight gradients: a third (a quarter) of them.
    """
    c = rows_of("korthikanti22_table5")
    full = c.assign(way="full", time=c.full_recompute_s)
    c = pd.concat([full, c.assign(way="selective", time=c.seqpar_selective_s)])
    parallel = (c.way == "selective").to_numpy(float)
    fixed = {**MEGATRON, "recompute": c.way.to_list(), "sequence_parallel": parallel}
    name, label = "Korthikanti et al. 2022, table 5", "{0.model} {0.way}"
    overlap = {"tp": np.where(parallel > 0, 1 / 4, 1 / 3)}
    return measured(name, c, label, c.time, fixed, overlap=overlap, changed=gathers)


def vtrain(which: str) -> Measured:
    """Return vTrain's validation data: ``single`` or ``multi`` node."""
    c = rows_of(f"vtrain_{which}_node").assign(vocab=50_257)
    label = "h{0.hidden:g} t{0.t:g} p{0.p:g} d{0.d:g} b{0.microbatch:g}"
    name = f"vTrain, {which} node"
    return measured(name, c, label, c.iter_time_s, MEGATRON, nics="vtrain")


def megatron_bridge(sparse: bool) -> Measured:
    """Return published runs of presets on H100s in 8 bits, dense or with experts.

    The recipes overlap tensor-parallel communication with its products in t parts,
    gradients, parameters, ring attention and the sends of interleaved stages.
    """
    c = rows_of("megatron_bridge_h100")
    c = c[[bool(preset(name).model.experts) is sparse for name in c.model]]
    c = c.assign(d=c.gpus / (c.t * c.p * c.cp))
    known = [preset(name) for name in c.model]
    t, layers = c.t.to_numpy(float), np.array([p.model.layers for p in known])
    # Megatron-Core has as many layers in every chunk: where they do not divide, the
    # recipes count embedding and loss (account_for_embedding_in_pipeline_split)
    chunks = (c.p * c.v).to_numpy()
    ends = (layers % chunks > 0) & ((layers + 2) % chunks == 0)
    pairs = zip(known, c.seq, strict=True)
    fixed = {
        "model": [replace(p.model, sequence=int(s)) for p, s in pairs],
        "k": [float(p.gating.k) for p in known],
        "dispatcher": np.where(c.dispatch == "once a node", "deduplicated", "plain"),
        "node_limit": 4.0 * (c.model == "deepseek-v3").to_numpy(),
        "zero": np.where(c.fsdp > 0, 3, 1),
        **{"embedding_layers": ends, "head_layers": ends, "sequence_parallel": t > 1},
        **{"etp": 1, "gpus_per_node": 8, "fused_attention": True, "fp8": True},
    }
    overlap = {"tp": (t - 1) / t, **dict.fromkeys(("dp", "edp", "pp", "cp"), 1.0)}
    name = f"Megatron-Bridge, H100, {'experts' if sparse else 'dense'}"
    label, times = "{0.model} {0.release}", c.batch * c.seq / (c.gpus * c.tokens_s_gpu)
    on = {"gpu": H100, "nics": "dgx-h100", "overlap": overlap}
    return measured(name, c, label, times, fixed, **on)


def mpt(gpu: Gpu) -> Measured:
    """Return published runs of MPT with FSDP on one kind of GPU, 8 to 512 of them.

    FSDP gathers the next block beside a block's compute, and reduces behind it.  Their
    attention is FlashAttention in Triton, which was not measured here: on H100 that of
    FlashAttention-2 is taken, 1.3 to 2.5 times as fast (arXiv 2307.08691, section 4.1).
    """
    if gpu.attention:
        gpu = replace(gpu, attention=ATTENTION["FlashAttention-2"])
    c = rows_of("mpt_throughput").query("gpu == @gpu.name").assign(d=lambda c: c.gpus)
    fixed = {
        "zero": np.where(c.fsdp == "full", 3.0, 2.0),
        "recompute": np.where(c.checkpointing > 0, "full", "none"),
        **{"gradient_dtype": c.gradients.to_numpy(float), "fused_attention": True},
    }
    name, label = f"MPT, {gpu.name}, FSDP", "{0.model} {0.seq:g} on {0.gpus:g}"
    times = c.batch * c.seq / (c.gpus * c.tokens_s_gpu)
    on = {"gpu": gpu, "nics": f"mpt-{gpu.name.lower()}", "overlap": {"dp": 1.0}}
    return measured(name, c, label, times, fixed, **on)


UNSEEN: tuple[Callable[[], Measured], ...] = (lambda: mpt(A100), lambda: mpt(H100))
"""Tables that were entered when form and constants stood, and nothing was changed."""

TABLES: tuple[Callable[[], Measured], ...] = (
    *(sc21_table1, korthikanti_table5),
    *(lambda: vtrain("multi"), lambda: vtrain("single")),
    sc21_table2,
    *(lambda: megatron_bridge(sparse=False), lambda: megatron_bridge(sparse=True)),
)
