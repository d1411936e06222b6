"""GPT-350M on Big Red 200: cost of data parallelism on 1 to 8 A100s.

With Megatron's distributed optimizer a step all-gathers the weights and reduce-scatters
the gradients: each moves ``(n-1)/n S`` bytes over a GPU's link, S = parameters x 2 B.
The report measures both, and NCCL's all-reduce beside them, so that one can be compared
with the other.  Its compute time follows from its 15% at 8 GPUs and is the same on any
number of GPUs, since each GPU's batch is.

References
----------
J. Jia, "Distributed Communication Overhead on Training GPT-350M using Megatron-LM"
(2024-04-22), table 1, section 3.3 and figures 1 to 4.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from moetraffic.data import published
from moetraffic.patterns import parameter_count, preset
from moetraffic.patterns.bandwidth import Curve, big_red_200
from moetraffic.patterns.collectives import wire_bytes
from moetraffic.result import Result

from .study import Rows, compared, recomputed, table

PLACES = {(4, 1): "4 GPUs, 1 node", (8, 2): "8 GPUs, 2 nodes"}
"""(GPUs, nodes) of the two measurements."""

ELEMENT_BYTES = 2  # fp16 weights and gradients

LOW, HIGH = "intra_node_AG_or_RS_time_low", "intra_node_AG_or_RS_time_high"
SLOW = "inter_node_AG_or_RS_time"
"""Names of the times of an all-gather or reduce-scatter: least and most on 4 GPUs of a
node, and on 8 GPUs of two nodes."""


def reproduce() -> Result:
    """Compare the report's values with the recomputed ones."""
    size = _reported("params") * ELEMENT_BYTES
    return recomputed(
        "gpt350m",
        "GPT-350M with Megatron-LM on Big Red 200, J. Jia, 2024-04-22",
        {
            "bandwidth": ("GB/s, from the time of an all-gather", _estimates(size)),
            "transfers": (
                "ms of an all-gather or reduce-scatter, by the table of all-reduces; "
                "the report's 4 to 5 ms in a node are half that speed",
                _transfers(size),
            ),
            "fits": (
                "T = alpha steps + wire/beta of least relative deviations; an outlier "
                "is beyond 3.5 robust standard deviations and 5% of a fit without it",
                _fits(),
            ),
            "all_reduces": ("us: each size, and fitted without it", _measurements()),
            "scaling": ("share of communication, and throughput", _scaling(size)),
        },
        (
            "11.29 GB/s, because it is an error: it is 700 MB / 62 ms, without the "
            "factor 7/8 of its formula, with which it is 9.88 GB/s, as in the "
            "all-reduces",
            "the share of 15% from the configuration, because micro-batch and sequence "
            "length are not given: it calibrates compute here",
            "figure 2's shares and figure 4's throughput for fewer than 8 GPUs, "
            "because they have no numbers: ours are compared with the text",
            "the share of GPT-1.3B in figure 3, because it has no number",
        ),
    )


def _reported(key: str) -> float:
    return published("jia_training").value(key)


def transfer_s(size_bytes: float, gpus: int, nodes: int) -> float:
    """Estimate the all-gather time from the measured all-reduce bus bandwidth, s."""
    span = big_red_200().effective("all_reduce", gpus, size_bytes, span=nodes)
    return float(wire_bytes("all_gather", gpus, size_bytes)) / float(span.bytes_s)


def _curve(gpus: int, nodes: int) -> tuple[Curve, Any]:
    """Return the all-reduces of one place, and their fit."""
    (curve,) = (
        c
        for (*_, span), curves in big_red_200().curves.items()
        for c in curves
        if (c.ranks, span) == (gpus, nodes)
    )
    return curve, curve.fit


def _estimates(size: float) -> Rows:
    """Compute bandwidths from times; (n-1)/n of the bytes are sent."""
    inside = _reported("intra_node_bandwidth_est")
    between = _reported("inter_node_bandwidth_est")
    shares = {gpus: float(wire_bytes("all_gather", gpus, size)) for gpus in (4, 8)}
    rows = [
        (formula, *compared(claim, moved / _reported(time) / 1e6), remark)
        for formula, moved, time, claim, remark in (
            ("700 MB x 3 / (4 x 5 ms)", shares[4], HIGH, inside, ""),
            ("700 MB x 3 / (4 x 4 ms)", shares[4], LOW, None, ""),
            (
                *("700 MB x 7 / (8 x 62 ms)", shares[8], SLOW, between),
                "error in the report",
            ),
            (
                *("700 MB / 62 ms, without 7/8", size, SLOW, between),
                "where 11.29 comes from",
            ),
        )
    ]
    return table("formula published ours error remark", rows)


def _transfers(size: float) -> Rows:
    exact = parameter_count(preset("gpt-350m").model).total * ELEMENT_BYTES
    rows = [
        (f"{gpus} GPUs, {name}", *compared(_reported(key), transfer * 1e3))
        for gpus, nodes, key in ((4, 1, LOW), (4, 1, HIGH), (8, 2, SLOW))
        for name, bytes_ in (("700 MB", size), (f"{exact / 1e6:.0f} MB", exact))
        for transfer in [transfer_s(bytes_, gpus, nodes)]
    ]
    return table("of published ours error", rows)


def _fits() -> Rows:
    rows = []
    for place, name in PLACES.items():
        curve, fit = _curve(*place)
        far = ", ".join(f"{s:.0f} MiB" for s in curve.size[fit.outlier] / 2**20)
        rows.append(
            (
                *(name, fit.model.alpha_s * 1e6, fit.model.beta_bytes_s / 1e9),
                *(float(np.abs(fit.residual).max()), fit.median),
                *(float(np.abs(fit.left_out[~fit.outlier]).max()), far or "none"),
            )
        )
    names = "of alpha_us beta_gbs worst_residual median_left_out"
    return table(f"{names} worst_left_out_no_outlier outliers", rows)


def _measurements() -> Rows:
    """Tabulate published and fitted all-reduce times."""
    rows: list[tuple[Any, ...]] = []
    for place in PLACES:
        curve, fit = _curve(*place)
        fitted = fit.model.time_s("all_reduce", place[0], curve.size)
        columns = curve.time_s * 1e6, fitted * 1e6, fit.residual, fit.left_out
        for size, outlier, *cells in zip(
            curve.size, fit.outlier, *map(np.ndarray.tolist, columns), strict=True
        ):
            far = "outlier" if outlier else ""
            rows.append((int(size), f"{place[0]} GPUs", *cells, far))
    names = "size_bytes of published ours error residual_left_out outlier"
    return table(names, rows)


def _scaling(size: float) -> Rows:
    """Tabulate communication shares and throughput for 1 to 8 GPUs.

    Compute time follows from the published share at 8 GPUs.
    """
    share = _reported("comm_ratio_8gpu_350M")
    compute = 2 * _reported(SLOW) * 1e-3 * (1 - share) / share
    inside = (_reported(LOW) + _reported(HIGH)) * 0.5e-3
    rows: list[tuple[Any, ...]] = []
    for gpus, claim, timed, words in (
        (1, None, 0.0, "flat"),
        (2, None, None, "flat"),
        (4, None, inside, "flat, share not significant"),
        (8, share, _reported(SLOW) * 1e-3, "drops"),
    ):
        moving = 0.0 if gpus == 1 else transfer_s(size, gpus, 1 if gpus <= 4 else 2)
        ours = 2 * moving / (2 * moving + compute)
        rows.append(
            (
                *(f"{gpus} GPU{'s' * (gpus > 1)}", claim, ours),
                None if claim is None else ours - claim,
                None if timed is None else 2 * timed / (2 * timed + compute),
                *(1 - ours, gpus * (1 - ours), words),
            )
        )
    names = "of published ours difference by_times_of_the_report throughput_per_gpu"
    return table(f"{names} throughput text_on_throughput", rows)
