"""Large transformers on Polaris and DGX systems: what of the claims can be recomputed.

References
----------
S. Cheng et al., "Thorough Characterization and Analysis of Large Transformer Model
Training At-Scale", SIGMETRICS'24: table 4, the projection's equation; the claims as
told in the ExaComm'24 panel.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from moetraffic.data import published
from moetraffic.patterns import Layout, preset
from moetraffic.result import Result
from moetraffic.timemodel import (
    Estimate,
    NodeLinks,
    System,
    estimate,
    projected_speedup,
)

from .study import Rows, compared, recomputed, rounded, table

PEAK = 312e12  # A100, bf16, dense (NVIDIA's datasheet)
MEMORY_GBS = {"40GB HBM2": 1555.0, "80GB HBM2e": 2039.0}  # the same
PCIE_GBS = 31.5  # PCIe 4.0 x16, each way, after its 128b/130b code
SYSTEMS = ("Polaris", "TG40", "TG80")
LOW, HIGH = "Polaris", "TG40"
GIGA = 1e9


def systems() -> dict[str, dict[str, str]]:
    """Return the fields of table 4 of SIGMETRICS'24 by system."""
    rows = list(published("argonne_table4_systems"))
    return {name: {row["field"]: row[name] for row in rows} for name in SYSTEMS}


def system(name: str) -> System:
    """Create a system of table 4 from measured GPU copy and nominal NIC rates."""
    stated = systems()[name]
    links = NodeLinks(
        gpus=float(stated["gpus_per_node"]),
        inside_bytes_s=float(stated["p2p_GBps"]) * GIGA,
        nic_bytes_s=float(stated["nic_bw_per_node_GBps"]) * GIGA,
    )
    return System(
        peak_flops=PEAK,
        utilization=0.4,
        bandwidth=links,
        memory_bytes=(80 if "80GB" in stated["gpu_mem"] else 40) * GIGA,
        memory_bytes_s=float(stated["gpu_mem_bw_GBps"]) * GIGA,
    )


def reproduce() -> Result:
    """Compare the claims and table 4 with the recomputed values."""
    return recomputed(
        "sigmetrics24",
        "large transformers on Polaris and DGX A100, Cheng et al., SIGMETRICS'24",
        {
            "communication": (
                f"data parallelism, {LOW} over {HIGH}; a ring gets all NICs of a node "
                "(200/25 = 8), a hierarchical all-reduce spends time inside, too",
                _communication(),
            ),
            "throughput": ("lost: 1 - r + 7.35 r = 1/(1 - 0.5925)", _throughput()),
            "projection": (
                "speedup from one node to 2, 4 ... 64, GPT-1.3B, a GPU's batch stays; "
                "MSE of the projection against our time model",
                _projection(),
            ),
            "model_parallel": ("18.4B on 64 GPUs, not published", _model_parallel()),
            "copies": (
                "GB/s of table 4 beside data sheets and PCIe 4.0 x16; GPUs and NICs of "
                "all nodes",
                _copies(),
            ),
            "scaling": (
                "takeaway 'DP can achieve better scaling compared to TP', by the time "
                "model: GPT-1.3B, 64 sequences, one node and more",
                _dp_and_tp(),
            ),
        },
        (
            "7.35 x as measured, because model and GPUs behind it are not given: what "
            "table 4 makes of it, with nothing fitted, stands beside it",
            "59.25% by itself, because it needs the share of communication on the fast "
            "system, a bar without a number: that which both claims imply is given",
            "the MSE below 2.0%, because the measured speedups are bars without "
            "numbers: its error against our model is given",
            "six sizes up to 18.4B, BERT and three emulated bandwidths, because their "
            "shapes and values are not given",
            "the time distributions of figures 2 and 14, because they have no numbers",
        ),
    )


def _claim(name: str) -> float:
    return published("argonne_claims").value(name)


def _times(name: str, gpus: int) -> dict[str, float]:
    """Compute the time of an all-reduce of 1 GB by algorithm, s.

    Hierarchical over k nodes of G GPUs: ``2 (G-1)/G S/inside + 2 (k-1)/k S/NIC``.
    """
    on = system(name)
    config = Layout(model=preset("gpt-1.3b").model, dp=gpus, global_batch=gpus)
    sized = replace(config, gradient_dtype=GIGA / config.arrays().held)
    links: Any = on.bandwidth
    each, nodes = links.gpus, gpus // links.gpus
    inside = 2 * (each - 1) / each * GIGA / links.inside_bytes_s
    between = 2 * (nodes - 1) / nodes * GIGA / links.nic_bytes_s
    return {
        "ring": float(estimate(sized, on).dp),
        "hierarchical": float(inside + between),
    }


def _growth(gpus: int) -> dict[str, float]:
    """Compute how many times longer an all-reduce takes on the slow system."""
    slow, fast = _times(LOW, gpus), _times(HIGH, gpus)
    return {how: slow[how] / fast[how] for how in slow}


def _communication() -> Rows:
    claim = _claim("comm_time_increase_low_bw_system_DP")
    return table(
        "of published ours error",
        (
            (f"{gpus} GPUs, {how}", *compared(claim, growth, 2, 4))
            for gpus in (16, 32, 64)
            for how, growth in _growth(gpus).items()
        ),
    )


def _throughput() -> Rows:
    growth = _claim("comm_time_increase_low_bw_system_DP")
    claim = _claim("throughput_reduction_low_bw_system_DP") / 100
    share = claim / (1 - claim) / (growth - 1)  # 1 - r + growth r = 1/(1 - claim)
    slow = growth * share / (1 - share + growth * share)
    rows: list[tuple[str, float | None, float]] = [
        ("R_comm on the fast system that both claims imply", None, share),
        ("R_comm on the slow one", None, slow),
    ]
    for how, times in _growth(64).items():
        ours = 1 - float(projected_speedup(1 - share, share, 1 / times))
        what = f"throughput reduction from that share, {how} of 64 GPUs"
        rows.append((what, claim, ours))
    cells = ((what, *compared(known, ours, 4, 4)) for what, known, ours in rows)
    return table("of published ours error", cells)


def _of_model(name: str, model: str = "gpt-1.3b", **fields: Any) -> Estimate:
    """Estimate a model in half precision on a system."""
    config = Layout(model=preset(model).model, dtype="float16", **fields)
    return estimate(config, system(name))


def _projection() -> Rows:
    """Compare the published speedup projection with the full time model."""
    bound = _claim("projection_MSE_upper_bound") / 100
    rows = []
    for name, stage in product((LOW, HIGH), (0, 1, 2, 3)):
        gpus = float(systems()[name]["gpus_per_node"]) * 2.0 ** np.arange(7)
        batch = 4 * gpus
        found = _of_model(name, dp=gpus, zero=stage, micro_batch=4, global_batch=batch)
        speedup = float(found.iteration[0]) / found.iteration
        moved = found.all_communication
        projected = projected_speedup(
            found.iteration[0] - moved[0], moved[0], moved[0] / moved
        )
        error = float(np.mean((projected - speedup) ** 2))
        both = (" ".join(f"{v:.3f}" for v in some) for some in (projected, speedup))
        of = f"{name}, ZeRO {stage}"
        rows.append((of, f"< {bound:.2%}", f"{error:.4%}", error < bound, *both))
    return table("of published_MSE MSE below projected our_model", rows)


def _model_parallel() -> Rows:
    """Compare tensor- and pipeline-parallel layouts of an 18.4B GPT on 64 GPUs."""
    rows = []
    fixed: dict[str, Any] = {"micro_batch": 1, "global_batch": 512, "recompute": "full"}
    for name in (LOW, HIGH):
        node = int(systems()[name]["gpus_per_node"])
        for what, t, p in (
            (f"tp {node}, a node", node, 1),
            (f"tp {2 * node}, two nodes", 2 * node, 1),
            (f"tp {node}, pp 2", node, 2),
            (f"tp {node // 2}, pp 4", node // 2, 4),
        ):
            sizes: dict[str, Any] = {"tp": t, "pp": p, "dp": 64 // (t * p)}
            e = _of_model(name, "megatron-18.4b", **sizes, **fixed)
            shares = rounded((e.dp, e.comm_share, e.bubble_share), 3)
            rows.append((name, what, *rounded((e.iteration, e.tp), 2), *shares))
    return table("system layout T_iter T_TP T_DP R_comm R_bubble", rows)


def _copies() -> Rows:
    """Tabulate rates and totals of table 4 beside nominal ones."""
    rows: list[tuple[Any, ...]] = []
    for name, stated in systems().items():
        number = {key: float(stated[key]) for key in stated if "GBps" in key}
        nodes, each = float(stated["nodes"]), float(stated["gpus_per_node"])
        for what, field, nominal in (
            ("GPU memory", "gpu_mem_bw_GBps", MEMORY_GBS[stated["gpu_mem"]]),
            ("copy from pinned memory", "pinned_copy_GBps", PCIE_GBS),
            ("copy from pageable memory", "pageable_copy_GBps", PCIE_GBS),
        ):
            share = round(number[field] / nominal, 3)
            rows.append((name, what, number[field], nominal, share))
        nics = nodes * number["nic_bw_per_node_GBps"]
        rows.append((name, "nodes, and their GPUs", nodes, nodes * each, None))
        rows.append((name, "NICs of all nodes", None, nics, None))
    return table("system of measured nominal share_of_nominal", rows)


def _dp_and_tp() -> Rows:
    """Compare the speedups of more replicas and of more tensor-parallel ranks."""
    rows: list[tuple[Any, ...]] = []
    for name in (LOW, HIGH):
        node = int(systems()[name]["gpus_per_node"])
        gpus = np.array([n for n in (4.0, 8.0, 16.0) if n >= node])
        cells: list[Any] = []
        for axis in ("dp", "tp"):
            fields: dict[str, Any] = {axis: gpus, "global_batch": 64}
            e = _of_model(name, micro_batch=1, **fields)
            sent = np.sum(list(e.wire.values()), axis=0) / GIGA
            cells += [e.iteration, e.iteration[0] / e.iteration, sent]
        for n, *values in zip(gpus.tolist(), *cells, strict=True):
            rows.append((name, int(n), *rounded(values, 3)))
    columns = "T_iter_{0} speedup_{0} sent_gb_per_gpu_{0}"
    return table(f"system gpus {columns.format('DP')} {columns.format('TP')}", rows)
