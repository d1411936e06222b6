"""Result of a benchmark: rows, CSV and JSON files, and a table as in nccl-tests.

The time of a row is the mean over the timed iterations on the slowest rank, as in
nccl-tests with ``--average 3``; its busbw is wire bytes over that time.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np

from moetraffic.errors import ReplayError
from moetraffic.files import write_text
from moetraffic.patterns.bandwidth import HockneyFit, hockney_fit
from moetraffic.patterns.collectives import wire_bytes
from moetraffic.replay.results.output import to_json
from moetraffic.tables import Table

ENDINGS = (".csv", ".json")
PLACES = {"out": "out of place", "in": "in place"}
SHOWN = 5
"""Collectives in the summary, which has at most eight lines."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """Measurement of one collective at one size, a row of the CSV file."""

    collective: str
    platform: str
    protocol: str
    ranks: int
    span: int  # hosts that the ranks are on
    place: str  # "out" or "in"
    size_bytes: int
    wire_bytes: int  # over the busiest link
    count: int  # elements
    dtype: str
    redop: str  # "sum", or "none"
    root: int  # -1 for none
    time_us: float
    algbw_gbs: float
    busbw_gbs: float
    wrong: int  # elements on all ranks together; -1: not checked


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Result of a benchmark of collectives: settings, versions and rows."""

    backend: str
    ranks: int
    nodes: tuple[str, ...]  # host of each rank
    warmup: int
    iterations: int
    check: int
    moetraffic: str
    torch: str
    created: str  # ISO 8601, UTC
    rows: tuple[Row, ...]

    @property
    def wrong(self) -> int:
        """Number of wrong elements over all rows, checks and ranks."""
        return sum(max(row.wrong, 0) for row in self.rows)

    def to_json(self) -> str:
        """Format the result as one JSON object."""
        return to_json("moetraffic bench", self, indent=1)

    def to_csv(self) -> str:
        """Format the result as CSV with comments, a header, and one line per row."""
        out = io.StringIO()
        hosts = ", ".join(dict.fromkeys(self.nodes))
        out.write(
            f"# moetraffic bench: {self.backend}, {self.ranks} ranks on {hosts}, "
            f"{self.iterations} iterations after {self.warmup}, {self.check} checked\n"
            f"# moetraffic {self.moetraffic}, torch {self.torch}, {self.created}\n"
        )
        writer = csv.DictWriter(out, [f.name for f in fields(Row)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(row) for row in self.rows)
        return out.getvalue()

    def save(self, path: Path) -> None:
        """Write the result as JSON if the name ends in .json, else as CSV.

        Raises
        ------
        ReplayError
            If the file cannot be written.
        """
        text = self.to_json() if path.suffix == ".json" else self.to_csv()
        write_text(path, text, error=ReplayError)


def hockney_fits(rows: Sequence[Row]) -> dict[tuple[str, str], HockneyFit]:
    """Fit Hockney's model to each collective and place with three sizes or more."""
    found = {}
    for key in dict.fromkeys((row.collective, row.place) for row in rows):
        mine = [row for row in rows if (row.collective, row.place) == key]
        if len({row.size_bytes for row in mine}) >= 3:
            name, ranks = mine[0].collective, mine[0].ranks
            # an uneven matrix has no bus factor: fit as an even one with its wire bytes
            wire = np.array([row.wire_bytes for row in mine], np.float64)
            even = wire / float(wire_bytes(name, ranks, 1.0))
            took = [row.time_us * 1e-6 for row in mine]
            if wire.min() > 0:
                found[key] = hockney_fit(name, ranks, even, took)
    return found


def sentences(bench: Bench) -> list[str]:
    """Summarize a benchmark in at most seven lines, collectives by bus bandwidth."""
    hosts = len(set(bench.nodes))
    lines = [
        f"Measured: {bench.backend}, {bench.ranks} ranks on {hosts} host"
        f"{'s' if hosts > 1 else ''}, {bench.iterations} timed iterations after "
        f"{bench.warmup} of warm-up; wrong elements: {bench.wrong}."
    ]
    fits = hockney_fits(bench.rows)
    names = list(dict.fromkeys(row.collective for row in bench.rows))
    for name in names[:SHOWN]:
        mine = [row for row in bench.rows if row.collective == name]
        best = max(mine, key=lambda row: row.busbw_gbs)
        kinds = [
            f"{PLACES[p]}: {_fitted(f)}" for (n, p), f in fits.items() if n == name
        ]
        rate = (
            f"busbw up to {best.busbw_gbs:.4g} GB/s, at {best.size_bytes:,} B "
            f"{PLACES[best.place]}"
        )
        lines.append(
            f"{name}: {rate}; {'; '.join(kinds) or 'no fit: fewer than 3 sizes'}."
        )
    if left := names[SHOWN:]:
        lines.append(f"{len(left)} more collectives are in the tables.")
    return lines


def tables(bench: Bench) -> list[Table]:
    """Tabulate the measurements with nccl-tests' quantities, a table per collective."""
    made = []
    for name in dict.fromkeys(row.collective for row in bench.rows):
        mine = [row for row in bench.rows if row.collective == name]
        mean = sum(row.busbw_gbs for row in mine) / len(mine)
        made.append(
            Table(
                title=f"{name}, {mine[0].dtype}, redop {mine[0].redop}, "
                f"root {mine[0].root}",
                columns={
                    **{"size [B]": "", "count": "", "buffers": "", "time [us]": ".2f"},
                    **{"algbw [GB/s]": ".3f", "busbw [GB/s]": ".3f", "wrong": ""},
                },
                rows=[
                    (
                        *(row.size_bytes, row.count, PLACES[row.place], row.time_us),
                        *(row.algbw_gbs, row.busbw_gbs),
                        row.wrong if row.wrong >= 0 else None,
                    )
                    for row in mine
                ],
                notes=[f"average bus bandwidth: {mean:.5g} GB/s"],
            )
        )
    return made


def _fitted(fit: HockneyFit) -> str:
    held_out = f"median error {fit.median:.0%} at sizes left out of the fit"
    if not fit.usable:
        return f"no usable fit ({held_out})"
    beta = fit.model.beta_bytes_s / 1e9
    rate = (
        f"bandwidth of large sizes (beta) {beta:.4g} GB/s"
        if beta < float("inf")
        else "no beta (time does not grow with size)"
    )
    return (
        f"latency (alpha) {fit.model.alpha_s * 1e6:.4g} us a step, {rate}, {held_out}"
    )
