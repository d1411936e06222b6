"""Import CSV tables of all-to-all bytes and routed tokens, and traffic matrices.

:mod:`moetraffic.interop.write.tables` writes the tables.  A line holds the bytes that
one rank sent to another, or the tokens that it routed to an expert; the header lists
the columns, in any order.  A pair that is not listed sends nothing.

=========  ==============================================================
exchanges  ``iteration,layer,phase,source,destination,bytes``
demands    ``iteration,layer,rank,expert,tokens``
either     ``micro_batch`` (0), ``group`` (all ranks: ``ep 0-3``)
exchanges  ``row_bytes``, ``dtype``, ``label``, ``direction`` (by phase)
both       ``call_source`` and ``step_source``, such as ``annotated`` or ``inferred``
demands    ``dropped`` (unknown)
=========  ==============================================================

A matrix is text with a row of numbers per source rank.  nccl-tests' ``alltoallv_perf``
reads one from ALLTOALLV_MATRIX_FILE, in KiB (``alltoallv.cu``, TRAFFIC_SCALE); UCC's
``ucc_perftest`` reads the same with a letter after the number (``512K``, ``2M``).  Here
blank lines separate matrices, and ``#`` begins a comment.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from moetraffic.arrays import Int64
from moetraffic.errors import TraceError
from moetraffic.spelling import check_choice
from moetraffic.trace.model import (
    ALL_TO_ALL,
    DIRECTIONS,
    PHASES,
    ROUTING,
    Group,
    Source,
)
from moetraffic.trace.provenance import SOURCES

from .files import (
    MOST_BYTES,
    MOST_ITERATIONS,
    MOST_LAYERS,
    MOST_TOKENS,
    lines,
    opened,
    whole,
    words,
    wrong,
)
from .rows import Contents, Importer, ImportOptions, Row, Step, number_of_ranks

if TYPE_CHECKING:
    import pandas

EXCHANGES = ("iteration", "layer", "phase", "source", "destination", "bytes")
DEMANDS = ("iteration", "layer", "rank", "expert", "tokens")
EITHER = {"micro_batch", "group", "call_source", "step_source"}
MORE = {"row_bytes", "dtype", "label", "direction"}  # of exchanges
MOST_MEMBERS = 1 << 13
COUNTS = {  # column: least and highest value, and that of an empty cell
    "iteration": (0, MOST_ITERATIONS, None),
    "micro_batch": (0, MOST_LAYERS, 0),
    "layer": (-1, MOST_LAYERS, None),
    "row_bytes": (0, MOST_BYTES, 0),
    "source": (0, MOST_MEMBERS - 1, None),
    "destination": (0, MOST_MEMBERS - 1, None),
    "bytes": (0, MOST_BYTES, None),
    "rank": (0, MOST_MEMBERS - 1, None),
    "expert": (0, (1 << 16) - 1, None),
    "tokens": (0, MOST_TOKENS, None),
    "dropped": (0, MOST_TOKENS, -1),
}
CHOICES = {
    "phase": PHASES,
    "direction": (*DIRECTIONS, "unknown"),
    "call_source": SOURCES,
    "step_source": SOURCES,
}
TEXTS = {"label": 200, "dtype": 20, "group": 1000}  # and their lengths
CALL = (  # columns that tell a call, in the order of a program
    *("iteration", "micro_batch", "layer", "stage", "phase", "direction", "label"),
    *("group", "dtype", "row_bytes", "call_source"),
)
UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
LETTERS = {"B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
CELL = re.compile(r"(\d{1,18})(?:\.(\d*))?(?:[eE]\+?(\d{1,2}))?([BKMG]?)")
AS_DISPATCH = "each matrix as the dispatch of layer 0, as --experts or --k is given"
NO_DISPATCH = "no layer and phase (--experts or --k: each matrix is a layer's dispatch)"
IN_KIB = "numbers read as KiB (--unit B for bytes)"


# ---- CSV ----------------------------------------------------------------------------


def read(files: Sequence[Path], options: ImportOptions) -> Contents:
    """Read the lines of all files as the calls of all ranks."""
    import pandas

    table = pandas.concat([_table(file) for file in files], ignore_index=True)
    if table.empty:
        what = "it holds no line but the names of its columns"
        raise wrong(files[0], what, "write a line for each pair")
    groups = {name: _group(name) for name in table["group"].unique()}
    demand = table["stage"] == 0
    ranks = [rank for group in groups.values() for rank in group.ranks]
    ranks += [table["of"].max(), *table.loc[~demand, "to"]]
    by = "the highest rank in the table"
    world, world_by = number_of_ranks(int(max(ranks)) + 1, by, options)
    contents = Contents(
        world=world,
        world_by=world_by,
        experts=max(options.experts, 1 + max(table.loc[demand, "to"], default=-1)),
    )
    everyone = tuple(range(world))
    contents.files = dict.fromkeys(everyone, files[0].name)
    for key, lines_of_call in table.groupby(list(CALL)):
        call = dict(zip(CALL, key, strict=True))
        group = groups[call["group"]]
        group = Group(kind=group.kind, ranks=group.ranks or everyone)
        _add_rows(call, lines_of_call, group, contents)
    stated = table["step_source"].map(lambda name: Source[name.upper() or "ANNOTATED"])
    for iteration, source in stated.groupby(table["iteration"]).min().items():
        contents.steps += [
            Step(rank=rank, iteration=iteration, source=Source(source))
            for rank in everyone
        ]
    return contents


def _table(path: Path) -> pandas.DataFrame:
    """Read a CSV file: the columns of CALL, and of, to, value, dropped, step_source.

    Its index are the lines of the file.
    """
    import pandas

    try:
        with opened(path) as text:
            table = pandas.read_csv(
                text,
                dtype=str,
                keep_default_na=False,
                skip_blank_lines=False,
                header=None,
            )
    except ValueError as error:  # also of the parser
        raise wrong(path, f"it is no CSV ({error})", "correct it there") from None
    header = [str(name).strip() for name in table.iloc[0]]
    demands = set(DEMANDS) <= set(header)
    needed = DEMANDS if demands else EXCHANGES
    odd = set(header) - {*needed} - EITHER - ({"dropped"} if demands else MORE)
    if odd or set(needed) - set(header) or len(set(header)) < len(header):
        raise wrong(
            path,
            f"its columns are {', '.join(header)[:200]}",
            f"name them {','.join(EXCHANGES)} or {','.join(DEMANDS)}",
        )
    table.columns = pandas.Index(header)
    table.index = table.index + 1
    table = table[1:].apply(lambda column: column.str.strip())
    table = table[(table != "").any(axis=1)].copy()
    of, to, value = needed[-3:]
    for name in (*needed, *EITHER, *MORE, "phase", "dropped"):
        table[name] = _column(
            path, table.get(name, pandas.Series("", table.index)), name
        )
    backward = table["phase"].str.contains("grad")
    implied = backward.map({True: "backward", False: "forward"})
    table["direction"] = table["direction"].where(table["direction"] != "", implied)
    table["direction"] = table["direction"].replace("unknown", "")
    _refuse(
        path,
        table["dropped"] > table[value],  # -1 in exchanges
        "more dropped tokens than tokens",
        "count those that are dropped among the tokens",
    )
    stages = {phase: 1 + at for at, phase in enumerate((*PHASES, ""))}
    table["stage"] = 0 if demands else table["phase"].map(stages)
    table = table.assign(of=table[of], to=table[to], value=table[value])
    _refuse(
        path,
        table.duplicated([*CALL, "of", "to"]),
        f"the same {of} and {to} of a call as a line before",
        "write one line for each, and number calls in the column micro_batch",
    )
    return table[[*CALL, "of", "to", "value", "dropped", "step_source"]]


def _refuse(path: Path, marked: pandas.Series, what: str, remedy: str) -> None:
    """Raise an error if any line is marked."""
    if marked.any():
        raise wrong(path, f"line {marked.idxmax()} has {what}", remedy)


def _column(path: Path, cells: pandas.Series, name: str) -> pandas.Series:
    """Check and convert a column."""
    if name in TEXTS:
        return cells.map(lambda text: words(text, TEXTS[name]))
    bad, converted = ~cells.isin({"", *CHOICES.get(name, ())}), cells
    rule = f"write one of {', '.join(CHOICES.get(name, ()))}, or nothing"
    if name in COUNTS:
        least, most, empty = COUNTS[name]
        numeric = cells.str.fullmatch(r"-?\d{1,18}")
        converted = cells.where(numeric, str(least)).astype("int64")
        bad = ~numeric | (converted < least) | (converted > most)
        rule = f"write an integer from {least} to {most:,}"
        if empty is not None:
            bad &= cells != ""
            converted = converted.where(cells != "", empty)
    _refuse(
        path, bad, f"{cells[bad.idxmax()][:40]!r} for {name}" if len(bad) else "", rule
    )
    return converted


def _group(text: str) -> Group:
    """Parse a group such as ``ep 0-3 8``; without ranks it is of all ranks."""
    spans = text.split()
    kind = spans.pop(0)[:20] if spans and not spans[0][0].isdigit() else "ep"
    ranks: list[int] = []
    for span in spans:
        first, _, last = span.partition("-")
        begin, end = whole(first), whole(last or first)
        if begin is None or end is None or not begin <= end < MOST_MEMBERS:
            ranks = [-1]
            break
        ranks += range(begin, end + 1)
    if len(set(ranks)) < len(ranks) or -1 in ranks:
        raise TraceError(
            f"a group is its kind and its ranks, such as 'ep 0-3', not {text[:40]!r}: "
            "change the column group"
        )
    return Group(kind=kind, ranks=tuple(ranks))


def _add_rows(
    call: Mapping[str, Any], cells: pandas.DataFrame, group: Group, contents: Contents
) -> None:
    """Add the rows of all members of a call."""
    routing = call["stage"] == 0
    member = {rank: at for at, rank in enumerate(group.ranks)}
    outside = set(np.unique(cells[["of"] if routing else ["of", "to"]])) - set(member)
    if outside:
        raise TraceError(
            f"an exchange is between the ranks of its group, but rank {min(outside)} "
            f"is not one of {list(group.ranks)[:20]}: change the column group"
        )
    of, to = cells["of"].map(member), cells["to"]
    sent = np.zeros((len(member), contents.experts if routing else len(member)), int)
    dropped = np.zeros_like(sent)
    sent[of, to if routing else to.map(member)] = cells["value"]
    if routing:
        dropped[of, to] = cells["dropped"]
        if (dropped < 0).any():
            dropped[:] = -1
    for rank, *sides in zip(
        group.ranks, sent, dropped if routing else sent.T, strict=True
    ):
        contents.rows.append(
            Row(
                rank=rank,
                operation=ROUTING if routing else ALL_TO_ALL,
                group=group,
                sent=sides[0],
                received=sides[1],
                dtype=call["dtype"],
                row_bytes=call["row_bytes"],
                phase=call["phase"],
                layer=call["layer"],
                label=call["label"],
                direction=call["direction"],
                source=Source[call["call_source"].upper() or "ANNOTATED"],
                iteration=call["iteration"],
            )
        )


def matches(path: Path, beginning: str) -> bool:
    """Return whether a file begins with a header that has a column iteration."""
    header = beginning.partition("\n")[0].replace(" ", "").strip().split(",")
    return "iteration" in header or (bool(beginning) and ".csv" in path.suffixes)


IMPORTER = Importer(
    name="csv",
    what="iteration,layer,phase,source,destination,bytes",
    matches=matches,
    read=read,
)


# ---- matrices -----------------------------------------------------------------------


def read_matrices(files: Sequence[Path], options: ImportOptions) -> Contents:
    """Read each traffic matrix as one iteration with one all-to-all."""
    check_choice("a unit", options.unit, ("", *UNITS), TraceError)
    unit = UNITS[options.unit or "KiB"]
    matrices = [matrix for file in files for matrix in _matrices(file, unit)]
    world = len(matrices[0])
    if any(len(matrix) != world for matrix in matrices):
        raise TraceError(
            "matrices of one run have one size, but these differ: import each by itself"
        )
    if options.ranks not in (0, world):
        raise TraceError(
            f"the matrix has {world} rows, one per rank, but --ranks is "
            f"{options.ranks}: leave it out"
        )
    dispatch = bool(options.experts or options.k)
    contents = Contents(world=world, world_by="the rows of a matrix")
    contents.files = dict.fromkeys(range(world), files[0].name)
    contents.inferred = [IN_KIB] * (not options.unit)
    contents.inferred.append(AS_DISPATCH if dispatch else NO_DISPATCH)
    group = Group(kind="ep" if dispatch else "world", ranks=tuple(range(world)))
    for iteration, matrix in enumerate(matrices):
        for rank in range(world):
            contents.steps.append(Step(rank=rank, iteration=iteration))
            contents.rows.append(
                Row(
                    rank=rank,
                    operation=ALL_TO_ALL,
                    group=group,
                    sent=matrix[rank],
                    received=matrix[:, rank],
                    row_bytes=0,
                    phase="dispatch" if dispatch else "",
                    layer=0 if dispatch else -1,
                    direction="forward" if dispatch else "",
                    source=Source.INFERRED,
                    iteration=iteration,
                )
            )
    return contents


def _matrices(path: Path, unit: int) -> Iterator[Int64]:
    """Yield the matrices of a file, ``[W, W]`` bytes each; a row sends."""
    rows: list[list[int]] = []
    size = 0
    for number, line in enumerate((*lines(path), ""), 1):
        cells = line.partition("#")[0].replace(",", " ").split()
        if len(cells) > MOST_MEMBERS:
            raise wrong(path, f"line {number} has more than {MOST_MEMBERS} numbers")
        if cells:
            rows.append(
                [_cell(path, number, *cell, unit) for cell in enumerate(cells, 1)]
            )
        elif rows and not line.strip():
            short = [n for n, row in enumerate(rows) if len(row) != len(rows)]
            if short:
                raise wrong(
                    path,
                    f"a matrix has {len(rows)} rows, but its row {short[0]} has "
                    f"{len(rows[short[0]])} numbers",
                    "write a number for each pair of ranks",
                )
            if size not in (0, len(rows)):
                raise wrong(
                    path, "its matrices differ in size", "import each by itself"
                )
            size = len(rows)
            yield np.array(rows, np.int64)
            rows = []
    if not size:
        raise wrong(path, "it holds no matrix", "write a row of numbers for each rank")


def _cell(path: Path, line: int, at: int, cell: str, unit: int) -> int:
    """Parse the bytes of a cell, rounded to whole ones if the unit is greater."""
    match = CELL.fullmatch(cell)
    digits, behind, power, letter = match.groups(default="") if match else [""] * 4
    scale = LETTERS[letter] if letter else unit
    number = Decimal(f"{digits or 0}.{behind or 0}e{power or 0}") * scale
    value = int(number + Decimal("0.5"))
    what = "not a number of bytes from 0 on" if match is None else ""
    remedy = "correct it, or name another format with --from"
    if value != number and scale == 1:
        what, remedy = "no whole number of bytes", "name its unit with --unit"
    elif value > MOST_BYTES:
        what = "too many bytes"
    if what:
        where = f"line {line}, number {at} is {cell[:40]!r}, which is {what}"
        raise wrong(path, where, remedy)
    return value


def matches_matrix(path: Path, beginning: str) -> bool:
    """Return whether a file begins with a row mostly of numbers, or a comment."""
    first = beginning.partition("\n")[0].partition("#")[0].replace(",", " ").split()
    numbers = sum(CELL.fullmatch(cell.lstrip("+-")) is not None for cell in first)
    comment = beginning.startswith("#") and "algbw" not in beginning
    return 0 < len(first) <= 2 * numbers or comment


MATRIX = Importer(
    name="matrix",
    what="a traffic matrix as text, such as nccl-tests' alltoallv reads",
    matches=matches_matrix,
    read=read_matrices,
)
