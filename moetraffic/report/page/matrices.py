"""Traffic matrices of some iterations, packed for the slider of the HTML report."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from moetraffic.analysis.exchange import Exchange, read
from moetraffic.arrays import Int64
from moetraffic.trace import Trace
from moetraffic.units import rank_span

MOST_ITERATIONS = 60
"""Iterations whose matrices are in a page, evenly spaced."""

MOST_CELLS = 4_000_000
"""Cells of all matrices in a page, above which there are fewer iterations."""

LARGEST = (128, 256)
"""Maximum drawn rows and columns; in larger matrices, neighboring cells are summed."""


@dataclass(frozen=True, kw_only=True)
class Matrices:
    """Heatmap of traffic matrices with an iteration slider."""

    source: str
    blocks: tuple[dict[str, Any], ...]  # in the format of the page's script
    key: str = "matrices"
    title: str = "Traffic matrices"


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Matrices of some iterations of an exchange."""

    exchange: Exchange
    iterations: Int64  # [n]
    demand: Int64 | None  # [n, W, E] token copies
    wire: Int64 | None  # [n, W, W] bytes; row sends, column receives


def samples(trace: Trace, exchanges: Sequence[Exchange]) -> list[Sample]:
    """Read the matrices of evenly spaced iterations of all exchanges."""
    sampled = []
    for exchange in exchanges:
        width = len(exchange.ranks)
        cells = min(width, LARGEST[0]) * min(max(exchange.experts, width), LARGEST[1])
        fit = MOST_CELLS // (2 * cells * len(exchanges))
        number = min(len(exchange.iterations), max(3, min(MOST_ITERATIONS, fit)))
        chosen = np.unique(np.linspace(0, len(exchange.iterations) - 1, number).round())
        parts = [read(trace, exchange, range(n, n + 1)) for n in chosen.astype(int)]
        demand = [p.demand for p in parts if p.demand is not None]
        wire = [
            p.wire.astype(np.int64) * p.row_bytes for p in parts if p.wire is not None
        ]
        sampled.append(
            Sample(
                exchange=exchange,
                iterations=exchange.iterations[chosen.astype(int)],
                demand=np.concatenate(demand).astype(np.int64) if demand else None,
                wire=np.concatenate(wire) if wire else None,
            )
        )
    return sampled


def matrices(sampled: Sequence[Sample]) -> Matrices | None:
    """Build the heatmap of sampled matrices; None without matrices."""
    blocks: list[dict[str, Any]] = []
    pooled = False
    for sample in sampled:
        exchange = sample.exchange
        for name, unit, values, columns in (
            ("demand", "token copies", sample.demand, range(exchange.experts)),
            ("wire", "bytes", sample.wire, exchange.ranks),
        ):
            if values is None:
                continue
            drawn, rows, across = _pooled(values, exchange.ranks, columns)
            pooled |= drawn.shape != values.shape
            blocks.append(
                {
                    "id": len(blocks),
                    "layer": exchange.layer,
                    "group": rank_span(exchange.ranks),
                    "of": name,
                    "phase": exchange.phase if name == "wire" else "",
                    "unit": unit,
                    "rows": rows,
                    "columns": across,
                    "count": len(drawn),
                    "iterations": sample.iterations.tolist(),
                    **_packed(drawn),
                }
            )
    if not blocks:
        return None
    shown = max(block["count"] for block in blocks)
    total = max(len(sample.exchange.iterations) for sample in sampled)
    phase = sampled[0].exchange.phase
    return Matrices(
        source=f"{shown} of {total} iterations of every layer. Demand: token copies "
        "that each rank's router chose, by expert, those dropped later included. Wire: "
        f"bytes of {phase}, row sends, column receives, rank-local bytes included; "
        "combine and dispatch_grad send the transpose. Micro-batches are summed"
        + ("; neighboring rows and columns are summed" if pooled else ""),
        blocks=tuple(blocks),
    )


def _packed(values: Int64) -> dict[str, Any]:
    """Pack whole numbers as little-endian base64, divided by their common factor."""
    factor = int(np.gcd.reduce(values, axis=None)) or 1
    whole = values // factor
    size = np.min_scalar_type(whole.max(initial=0)).itemsize
    kind = f"u{size}" if size <= 4 else "f8"
    data = np.ascontiguousarray(whole, np.dtype(kind).newbyteorder("<")).tobytes()
    text = base64.b64encode(zlib.compress(data, 9)).decode()
    return {"factor": factor, "dtype": kind, "data": text}


def _pooled(
    values: Int64, rows: Sequence[int], columns: Sequence[int]
) -> tuple[Int64, list[str], list[str]]:
    """Sum matrices to at most :data:`LARGEST` cells per side, and name the cells."""
    most = LARGEST if len(rows) != len(columns) else (LARGEST[0],) * 2
    names = []
    for axis, (limit, numbers) in enumerate(zip(most, (rows, columns), strict=True), 1):
        each = -(-len(numbers) // limit)
        starts = np.arange(0, len(numbers), each)
        if each > 1:
            values = np.add.reduceat(values, starts, axis=axis)
        ends = np.minimum(starts + each, len(numbers)) - 1
        names.append(
            [
                str(numbers[a]) if a == b else f"{numbers[a]} to {numbers[b]}"
                for a, b in zip(starts.tolist(), ends.tolist(), strict=True)
            ]
        )
    return values, names[0], names[1]
