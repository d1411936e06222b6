"""Published iteration times of layouts, as arrays beside their configurations.

Each table has its own layout, software and network, from its paper or page;
``moetraffic/data`` has the figures and their sources.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from moetraffic.arrays import Float64
from moetraffic.data import published
from moetraffic.patterns import ModelShape, preset
from moetraffic.patterns.presets.catalog import GPT
from moetraffic.patterns.time_model import (
    A100,
    H100,
    SC21,
    Configuration,
    Conventions,
    Gpu,
    NodeLinks,
    System,
    estimate,
    operations,
)
from moetraffic.patterns.time_model.gpus import ATTENTION
from moetraffic.patterns.time_model.roofline import passes

PAPER = Conventions(gathers="paper")
"""The gather of a layer's inputs in backward hides under a matrix product
(arXiv 2205.05198, section 4.2.2)."""

LISTS = Conventions(zero3="lists")
"""DeepSpeed's ZeRO 3 at the time of SC'21.  Nothing overlaps: each gather waits for the
device ("the async version is not async at all", DeepSpeed, pull request 1188)."""


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


def nodes(
    gpu: Gpu,
    nic_bytes_s: float,
    overlap: Mapping[str, Any] | None = None,
    reached: Mapping[str, float] | None = None,
) -> System:
    """Return the system of nodes of eight GPUs with NICs of so many bytes/s.

    ``reached`` has bytes/s of one of eight NICs by kind of traffic, where measured.
    """
    links = NodeLinks.nominal(
        gpus=8, inside_bytes_s=gpu.inside_bytes_s, nic_bytes_s=nic_bytes_s
    )
    of_kinds = {
        kind: replace(links, nic_bytes_s=8 * rate)
        for kind, rate in (reached or {}).items()
    }
    return System.of_gpu(gpu, of_kinds or links, overlap=overlap)


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Published iteration times, with what they were measured on."""

    name: str
    labels: tuple[str, ...]
    config: Configuration  # arrays [n]
    times: Float64  # [n] s
    gpu: Gpu
    nic_bytes_s: float  # of a node of eight GPUs, nominal
    reached: Mapping[str, float] = field(default_factory=dict)  # of a NIC, measured
    overlap: Mapping[str, Any] = field(default_factory=dict)
    conventions: Conventions = SC21

    def system(self, gpu: Gpu | None = None) -> System:
        """Return the nodes of these measurements, with another fit of their GPU."""
        return nodes(gpu or self.gpu, self.nic_bytes_s, self.overlap, self.reached)

    def errors(self, gpu: Gpu | None = None) -> Float64:
        """``[n]`` relative errors of the estimates."""
        found = estimate(
            self.config, self.system(gpu), conventions=self.conventions, strict=False
        )
        return np.asarray(found.iteration / self.times - 1)

    @property
    def utilization(self) -> Float64:
        """``[n]`` FLOP of a mean stage, recomputed ones too, over time and peak."""
        work = operations(self.config, self.conventions)
        done = work.all * self.config.accumulation
        fp8 = np.where(self.config.fp8 > 0, self.gpu.fp8_speed, 1.0)
        return np.asarray(done / self.times / (fp8 * self.gpu.peak_flops))

    def part(self, rows: slice) -> Measured:
        """Return some of the rows."""
        parts = {
            f.name: _cut(getattr(self.config, f.name), rows)
            for f in fields(Configuration)
            if f.name != "model"
        }
        models = self.config.model
        models = models if isinstance(models, ModelShape) else models[rows]
        return replace(
            self,
            labels=self.labels[rows],
            config=Configuration(model=models, **parts),
            times=self.times[rows],
            overlap={n: _cut(v, rows) for n, v in self.overlap.items()},
        )


def _cut(values: Any, rows: slice) -> Any:
    made = np.asarray(values)
    return made[rows] if made.ndim else values


def _columns(name: str) -> dict[str, npt.NDArray[Any]]:
    """Columns of a published table: numbers, or texts where they are none."""
    rows = list(published(name))
    found = {}
    for key in rows[0]:
        cells = [row[key] for row in rows]
        try:
            found[key] = np.array([float(cell) for cell in cells])
        except ValueError:
            found[key] = np.array(cells)
    return found


def gpt(row: Mapping[str, Any]) -> ModelShape:
    """Return the GPT of a row, by default of 2048 tokens and 51,200 words."""
    return ModelShape(
        layers=int(row["layers"]),
        hidden=int(row["hidden"]),
        heads=int(row["heads"]),
        sequence=int(row.get("seq", 2048)),
        vocabulary=int(row.get("vocab", 51_200)),
        **GPT,
    )


def _gpts(name: str) -> list[ModelShape]:
    return [gpt(row) for row in published(name)]


def sc21_table1() -> Measured:
    """Return table 1 of SC'21: ten models on 32 to 3072 A100s."""
    c = _columns("megatron_sc21_table1")
    config = Configuration(
        model=_gpts("megatron_sc21_table1"),
        tp=c["t"],
        pp=c["p"],
        dp=c["d"],
        virtual=c["v_interleave"],
        micro_batch=c["microbatch"],
        global_batch=c["batch"],
        recompute="full",
        dtype="float16",
        scatter_gather=True,  # section 4.1
    )
    labels = tuple(
        f"{b:g}B on {n:g}" for b, n in zip(c["params_B"], c["gpus"], strict=True)
    )
    return Measured(
        name="SC'21, table 1",
        labels=labels,
        config=config,
        times=c["iter_time_s_derived"],
        gpu=A100,
        nic_bytes_s=NICS["selene"],
        reached=SELENE,
    )


def sc21_table2() -> Measured:
    """Return table 2 of SC'21: ZeRO-3 beside tensor and pipeline parallelism.

    The FLOP a GPU that it prints are turned into times by equation 3.
    """
    c = _columns("megatron_sc21_table2")
    zero = c["method"] == "zero3"
    config = Configuration(
        model=_gpts("megatron_sc21_table2"),
        tp=c["t"],
        pp=c["p"],
        dp=c["gpus"] / (c["t"] * c["p"]),
        micro_batch=c["microbatch"],
        global_batch=c["batch"],
        recompute="full",
        dtype="float16",
        scatter_gather=True,
        zero=np.where(zero, 3, 0),
        gathers=4,  # weight matrices of a layer; DeepSpeed keeps what is below 1e5
    )
    hidden, layers = c["hidden"], c["layers"]
    flop = 96 * c["batch"] * 2048 * layers * hidden**2
    flop = flop * (1 + 2048 / (6 * hidden) + 51_200 / (16 * layers * hidden))
    names = np.where(zero, "ZeRO-3", "PTD")
    cells = zip(names, c["params_B"], c["gpus"], strict=True)
    return Measured(
        name="SC'21, table 2",
        labels=tuple(f"{name} {size:g}B on {gpus:g}" for name, size, gpus in cells),
        config=config,
        times=flop / (c["gpus"] * c["tflops_per_gpu"] * 1e12),
        gpu=A100,
        nic_bytes_s=NICS["selene"],
        reached=SELENE,
        conventions=LISTS,
    )


def korthikanti_table5() -> Measured:
    """Return table 5 of arXiv 2205.05198: recomputation of activations.

    Its Megatron-LM sends the all-reduces of backward (with sequence parallelism the
    reduce-scatters) beside products of weight gradients: a third (a quarter) of them.
    """
    c = _columns("korthikanti22_table5")
    twice = {n: np.tile(c[n], 2) for n in (*"tpv", "batch")}
    small, half = np.tile(c["microbatch"], 2), np.repeat([0.0, 1.0], len(c["t"]))
    config = Configuration(
        model=2 * _gpts("korthikanti22_table5"),
        tp=twice["t"],
        pp=twice["p"],
        virtual=twice["v"],
        micro_batch=small,
        global_batch=twice["batch"],
        recompute=np.where(half > 0, "selective", "full"),
        sequence_parallel=half,
        dtype="float16",
        scatter_gather=True,
    )
    ways = ("full", "selective")
    return Measured(
        name="Korthikanti et al. 2022, table 5",
        labels=tuple(f"{name} {way}" for way in ways for name in c["model"]),
        config=config,
        times=np.concatenate([c["full_recompute_s"], c["seqpar_selective_s"]]),
        gpu=A100,
        nic_bytes_s=NICS["selene"],
        overlap={"tp": np.where(half > 0, 1 / 4, 1 / 3)},
        conventions=PAPER,
    )


def korthikanti_table4() -> tuple[list[str], Float64, Float64]:
    """Return table 4 of arXiv 2205.05198: passes of one layer of the 22B model.

    The all-reduces of backward, or its reduce-scatters, are hidden, as in table 5.

    Returns each row's name, its published and its estimated time ``[n]``, ms.
    """
    c = _columns("korthikanti22_table4")
    half, model = (
        c["sequence_parallel"],
        gpt({"layers": 48, "hidden": 6144, "heads": 64}),
    )
    config = Configuration(
        model=model,
        tp=8,
        micro_batch=4,
        global_batch=4,
        recompute=c["recompute"],
        sequence_parallel=half,
    )
    sent = estimate(
        config, nodes(A100, NICS["selene"]), conventions=PAPER
    ).communication["tp"]
    hidden = np.where(c["recompute"] == "full", 1 / 3, 1 / 2)
    hidden = np.where(half > 0, 1 / 4, hidden)
    ours = passes(config, A100).all + (1 - hidden) * sent
    return (
        c["configuration"].tolist(),
        c["forward_ms"] + c["backward_ms"],
        ours / 48 * 1e3,
    )


def vtrain(nodes: str) -> Measured:
    """Return vTrain's validation data: ``single`` or ``multi`` node."""
    c = _columns(f"vtrain_{nodes}_node")
    config = Configuration(
        model=[replace(m, vocabulary=50_257) for m in _gpts(f"vtrain_{nodes}_node")],
        tp=c["t"],
        pp=c["p"],
        dp=c["d"],
        micro_batch=c["microbatch"],
        global_batch=c["batch"],
        recompute="full",
        dtype="float16",
        scatter_gather=True,  # Megatron-LM's default
    )
    layouts = zip(c["hidden"], c["t"], c["p"], c["d"], c["microbatch"], strict=True)
    return Measured(
        name=f"vTrain, {nodes} node",
        labels=tuple("h{:g} t{:g} p{:g} d{:g} b{:g}".format(*x) for x in layouts),
        config=config,
        times=c["iter_time_s"],
        gpu=A100,
        nic_bytes_s=NICS["vtrain"],
    )


def megatron_bridge(sparse: bool) -> Measured:
    """Return published runs of presets on H100s in 8 bits, dense or with experts.

    The recipes overlap tensor-parallel communication with its products in t parts,
    gradients, parameters, ring attention and the sends of interleaved stages.
    """
    rows = [
        row
        for row in published("megatron_bridge_h100")
        if bool(preset(row["model"]).model.experts) is sparse
    ]
    known = [preset(row["model"]) for row in rows]
    lengths = [int(row["seq"]) for row in rows]
    models = zip(known, lengths, strict=True)
    cells = {
        n: np.array([float(row[n]) for row in rows])
        for n in rows[0]
        if n not in ("release", "model", "precision", "dispatch")
    }
    t, layers = cells["t"], np.array([one.model.layers for one in known])
    # Megatron-Core has as many layers in every chunk: where they do not divide, the
    # recipes count embedding and loss (account_for_embedding_in_pipeline_split)
    over = cells["p"] * cells["v"]
    ends = (layers % over > 0) & ((layers + 2) % over == 0)
    config = Configuration(
        model=[replace(one.model, sequence=tokens) for one, tokens in models],
        k=[float(one.gating.k) for one in known],
        tp=t,
        pp=cells["p"],
        cp=cells["cp"],
        dp=cells["gpus"] / (t * cells["p"] * cells["cp"]),
        ep=cells["ep"],
        etp=1,
        dispatcher=[
            "deduplicated" if row["dispatch"] == "once a node" else "plain"
            for row in rows
        ],
        node_limit=[4.0 * (row["model"] == "deepseek-v3") for row in rows],
        gpus_per_node=8,
        virtual=cells["v"],
        embedding_layers=ends,
        head_layers=ends,
        micro_batch=cells["microbatch"],
        global_batch=cells["batch"],
        sequence_parallel=t > 1,
        zero=np.where(cells["fsdp"] > 0, 3, 1),
        fused_attention=True,
        fp8=True,
    )
    tokens = cells["batch"] * cells["seq"]
    return Measured(
        name=f"Megatron-Bridge, H100, {'experts' if sparse else 'dense'}",
        labels=tuple(f"{row['model']} {row['release']}" for row in rows),
        config=config,
        times=tokens / (cells["gpus"] * cells["tokens_s_gpu"]),
        gpu=H100,
        nic_bytes_s=NICS["dgx-h100"],
        overlap={"tp": (t - 1) / t, "dp": 1.0, "edp": 1.0, "pp": 1.0, "cp": 1.0},
    )


def mpt(gpu: Gpu) -> Measured:
    """Return published runs of MPT with FSDP on one kind of GPU, 8 to 512 of them.

    FSDP gathers the next block beside a block's compute, and reduces behind it.  Their
    attention is FlashAttention in Triton, which was not measured here: on H100 that of
    FlashAttention-2 is taken, 1.3 to 2.5 times as fast (arXiv 2307.08691, section 4.1).
    """
    if gpu.attention:
        gpu = replace(gpu, attention=ATTENTION["FlashAttention-2"])
    rows = [row for row in published("mpt_throughput") if row["gpu"] == gpu.name]
    cells = {
        name: np.array([float(row[name]) for row in rows])
        for name in rows[0]
        if name not in ("gpu", "model", "fsdp")
    }
    config = Configuration(
        model=[gpt(row) for row in rows],
        dp=cells["gpus"],
        micro_batch=cells["microbatch"],
        global_batch=cells["batch"],
        zero=[{"full": 3.0, "grad": 2.0}[row["fsdp"]] for row in rows],
        recompute=np.where(cells["checkpointing"] > 0, "full", "none"),
        gradient_dtype=cells["gradients"],
        fused_attention=True,
    )
    tokens = cells["batch"] * cells["seq"]
    return Measured(
        name=f"MPT, {gpu.name}, FSDP",
        labels=tuple(f"{r['model']} {r['seq']} on {r['gpus']}" for r in rows),
        config=config,
        times=tokens / (cells["gpus"] * cells["tokens_s_gpu"]),
        gpu=gpu,
        nic_bytes_s=NICS[f"mpt-{gpu.name.lower()}"],
        overlap={"dp": 1.0},
    )


UNSEEN: tuple[Callable[[], Measured], ...] = (
    lambda: mpt(A100),
    lambda: mpt(H100),
)
"""Tables that were entered when form and constants stood, and nothing was changed."""

TABLES: tuple[Callable[[], Measured], ...] = (
    sc21_table1,
    korthikanti_table5,
    lambda: vtrain("multi"),
    lambda: vtrain("single"),
    sc21_table2,
    lambda: megatron_bridge(sparse=False),
    lambda: megatron_bridge(sparse=True),
)
