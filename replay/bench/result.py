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

from moetraffic.patterns.collective import wire_bytes
from moetraffic.patterns.hockney import HockneyFit, hockney_fit
from moetraffic.replay.results.output import to_json, write_text

ENDINGS = (".csv", ".json")
PLACES = {"out": "out of place", "in": "in place"}


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
        write_text(path, self.to_json() if path.suffix == ".json" else self.to_csv())


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


def lines(bench: Bench) -> list[str]:
    """Format a table with nccl-tests' columns, one block per collective."""
    text = []
    for collective in dict.fromkeys(row.collective for row in bench.rows):
        mine = [row for row in bench.rows if row.collective == collective]
        text += [
            f"# {collective}: {bench.backend}, {bench.ranks} ranks on "
            f"{len(set(bench.nodes))} host(s), {bench.iterations} iterations after "
            f"{bench.warmup}",
            f"#{'':>49}{'out-of-place':>38}{'in-place':>36}",
            f"#{'size':>12}{'count':>13}{'type':>9}{'redop':>8}{'root':>7}"
            + 2 * f"{'time':>11}{'algbw':>9}{'busbw':>9}{'#wrong':>8}",
            f"#{'(B)':>12}{'(elements)':>13}{'':>24}"
            + 2 * f"{'(us)':>11}{'(GB/s)':>9}{'(GB/s)':>9}{'':>8}",
        ]
        for size in dict.fromkeys(row.size_bytes for row in mine):
            places = {row.place: row for row in mine if row.size_bytes == size}
            some = next(iter(places.values()))
            line = (
                f" {size:>12}{some.count:>13}{some.dtype:>9}{some.redop:>8}"
                f"{some.root:>7}"
            )
            for place in ("out", "in"):
                line += _measured(places.get(place))
            text.append(line)
        mean = sum(row.busbw_gbs for row in mine) / len(mine)
        bad = sum(max(row.wrong, 0) for row in mine)
        text.append(
            f"# wrong elements: {bad}{' OK' if not bad else ''}; average bus "
            f"bandwidth: {mean:.5g} GB/s"
        )
        text += [
            f"# fit, {PLACES[place]}: {_fitted(fit)}"
            for (_, place), fit in hockney_fits(mine).items()
        ]
        text.append("")
    return text


def _measured(row: Row | None) -> str:
    if row is None:
        return f"{'N/A':>11}{'N/A':>9}{'N/A':>9}{'N/A':>8}"
    wrong = str(row.wrong) if row.wrong >= 0 else "N/A"
    return f"{row.time_us:>11.2f}{row.algbw_gbs:>9.3f}{row.busbw_gbs:>9.3f}{wrong:>8}"


def _fitted(fit: HockneyFit) -> str:
    beta = fit.model.beta_bytes_s / 1e9
    rate = f"beta {beta:.4g} GB/s" if beta < float("inf") else "no beta (flat in size)"
    return (
        f"alpha {fit.model.alpha_s * 1e6:.4g} us a step, {rate}; residuals up to "
        f"{abs(fit.residual).max():.1%}, median {fit.median:.1%} leaving a size out, "
        f"{int(fit.outlier.sum())} outliers"
    )
