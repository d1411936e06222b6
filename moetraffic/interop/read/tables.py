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
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from moetraffic.arrays import Int64
from moetraffic.errors import TraceError
from moetraffic.spelling import check_choice
from moetraffic.trace.model import (
    ALL_TO_ALL,
    DIRECTIONS,
    PHASES,
    ROUTING,
    TRANSPOSED_PHASES,
    Group,
    Source,
)
from moetraffic.trace.provenance import SOURCES
from moetraffic.units import rank_span

from .files import (
    MOST_BYTES,
    MOST_ITERATIONS,
    MOST_LAYERS,
    MOST_TOKENS,
    lines,
    opened,
    words,
    wrong,
)
from .rows import Contents, Importer, ImportOptions, Row, Step, too_few_ranks

if TYPE_CHECKING:
    import pandas

EXCHANGES = ("iteration", "layer", "phase", "source", "destination", "bytes")
DEMANDS = ("iteration", "layer", "rank", "expert", "tokens")
EITHER = {"micro_batch", "group", "call_source", "step_source"}
MORE = {"row_bytes", "dtype", "label", "direction"}  # of exchanges
MOST_MEMBERS = 1 << 13
MOST_EXPERTS = 1 << 16
COUNTS = {  # column: least and highest value, and that of an empty cell
    "iteration": (0, MOST_ITERATIONS, None),
    "micro_batch": (0, MOST_LAYERS, 0),
    "layer": (-1, MOST_LAYERS, None),
    "row_bytes": (0, MOST_BYTES, 0),
    "source": (0, MOST_MEMBERS - 1, None),
    "destination": (0, MOST_MEMBERS - 1, None),
    "bytes": (0, MOST_BYTES, None),
    "rank": (0, MOST_MEMBERS - 1, None),
    "expert": (0, MOST_EXPERTS - 1, None),
    "tokens": (0, MOST_TOKENS, None),
    "dropped": (0, MOST_TOKENS, -1),
}
BY_ROW_BYTES = (
    "exchanges from routed tokens and --row-bytes, each rank with a contiguous block "
    "of experts"
)
UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
LETTERS = {"B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
CELL = re.compile(r"(\d{1,18})(?:\.(\d*))?(?:[eE]\+?(\d{1,2}))?([BKMG]?)")
AS_DISPATCH = "each matrix as the dispatch of layer 0, as --experts or --k is given"
NO_DISPATCH = "no layer and phase (--experts or --k: each matrix is a layer's dispatch)"
IN_KIB = "numbers read as KiB (--unit B for bytes)"


class Call(NamedTuple):
    """Call to which lines of a table belong, in the order of a program."""

    iteration: int
    micro_batch: int
    layer: int
    stage: int  # 0: routing; then the phases; others
    phase: str
    direction: str
    label: str
    group: str
    dtype: str
    row_bytes: int
    call_source: str  # of layer, phase and label; "": the file states them


Values = dict[Call, tuple[Int64, Int64]]
"""Bytes ``[W, W]`` sent and received, or tokens and dropped tokens ``[W, E]``."""


# ---- CSV ----------------------------------------------------------------------------


def read(files: Sequence[Path], options: ImportOptions) -> Contents:
    """Read the lines of all files as the calls of all ranks."""
    import pandas

    table = pandas.concat([_table(file) for file in files], ignore_index=True)
    if table.empty:
        raise wrong(
            files[0],
            "it holds no line but the names of its columns",
            "write a line for each pair",
        )
    demand = table["stage"] == 0
    experts = max(options.experts, 1 + max(table.loc[demand, "to"], default=-1))
    groups = {name: _group(name) for name in table["group"].unique()}
    listed = [rank for group in groups.values() for rank in group.ranks]
    ranks = [*listed, int(table["of"].max())]
    ranks.append(max(table.loc[~demand, "to"], default=0))
    world = max(ranks) + 1
    if options.ranks and options.ranks < world:
        raise too_few_ranks(world, options)
    world = options.ranks or world
    for name, group in groups.items():
        everyone = group.ranks or tuple(range(world))
        groups[name] = Group(kind=group.kind, ranks=everyone)
    values: Values = {}
    for key, part in table.groupby(list(Call._fields), sort=False):
        call = Call(*key)
        values[call] = _values(call, part, groups[call.group], experts)
    contents = Contents(
        world=world, world_by="the highest rank in the table", experts=experts
    )
    if options.row_bytes:
        _add_exchanges(values, groups, options.row_bytes, contents)
    for call in sorted(values):
        _add_rows(call, values[call], groups[call.group], contents)
    stated = table[table["step_source"] != ""].groupby("iteration")["step_source"]
    sources = {
        int(iteration): min(Source[name.upper()] for name in names.unique())
        for iteration, names in stated
    }
    for rank in range(world):
        contents.files[rank] = files[0].name
        for iteration in sorted({call.iteration for call in values}):
            source = sources.get(iteration, Source.ANNOTATED)
            contents.steps.append(Step(rank=rank, iteration=iteration, source=source))
    return contents


def _table(path: Path) -> pandas.DataFrame:
    """Read a CSV file: the columns of :class:`Call`, and of, to, value, dropped."""
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
    table.index = table.index + 1  # lines of the file
    table = table[1:].apply(lambda column: column.str.strip())
    table = table[(table != "").any(axis=1)].copy()
    of, to, value = needed[-3:]
    names = {*needed, *EITHER, *MORE, "phase", "dropped"}
    for name in sorted(names - set(header)):
        table[name] = ""
    for name in sorted(names & COUNTS.keys()):
        table[name] = _counts(path, table[name], *COUNTS[name])
    _settle_words(path, table)
    _refuse(
        path,
        table["dropped"] > table[value],  # -1 in exchanges
        lambda line: (
            f"has {table['dropped'][line]} dropped of {table[value][line]} {value}"
        ),
        "count those that are dropped among the tokens",
    )
    table["stage"] = 0
    if not demands:
        order = {phase: 1 + n for n, phase in enumerate((*PHASES, ""))}
        table["stage"] = table["phase"].map(order)
    table = table.assign(of=table[of], to=table[to], value=table[value])
    _refuse(
        path,
        table.duplicated([*Call._fields, "of", "to"]),
        lambda line: (
            f"has {of} {table['of'][line]} and {to} {table['to'][line]} of the same "
            "call again"
        ),
        "write one line for each, and number calls in the column micro_batch",
    )
    return table[[*Call._fields, "step_source", "of", "to", "value", "dropped"]]


def _refuse(path: Path, lines: Any, what: Callable[[Any], str], remedy: str) -> None:
    """Raise the error of the first line that is marked."""
    if lines.any():
        line = lines.idxmax()
        raise wrong(path, f"line {line} {what(line)}", remedy)


def _counts(
    path: Path, cells: pandas.Series, least: int, most: int, empty: int | None
) -> pandas.Series:
    """Convert a column to integers."""
    filled = cells.where(cells != "", str(empty))
    numeric = filled.str.fullmatch(r"-?\d{1,18}")
    numbers = filled.where(numeric, "0").astype("int64")
    given = cells != ""
    beyond = (numbers < least) | (numbers > most)
    _refuse(
        path,
        ~numeric | (given & beyond),
        lambda line: f"has {cells[line][:40]!r} for {cells.name}",
        f"write an integer from {least} to {most:,}",
    )
    return numbers


def _settle_words(path: Path, table: pandas.DataFrame) -> None:
    """Check and complete the columns of text."""
    implied = (
        table["phase"].str.contains("grad").map({True: "backward", False: "forward"})
    )
    table["direction"] = table["direction"].where(table["direction"] != "", implied)
    for name, known, what in (
        ("phase", PHASES, "a phase is one of"),
        ("direction", (*DIRECTIONS, "unknown"), "a direction is one of"),
        ("call_source", SOURCES, "a source is one of"),
        ("step_source", SOURCES, "a source is one of"),
    ):
        _refuse(
            path,
            ~table[name].isin({"", *known}),
            partial(_odd_word, table[name]),
            f"{what} {', '.join(known)}, or empty",
        )
    table["direction"] = table["direction"].replace("unknown", "")
    for name, most in (("label", 200), ("dtype", 20), ("group", 1000)):
        table[name] = table[name].map(lambda text, most=most: words(text, most))


def _odd_word(cells: pandas.Series, line: Any) -> str:
    return f"has the {cells.name} {cells[line][:40]!r}"


def _group(text: str) -> Group:
    """Parse a group such as ``ep 0-3 8``; without ranks it is of all ranks."""
    match = re.fullmatch(
        r"(?:([^\s\d]\S{0,19})\s*)?((?:\d{1,6}(?:-\d{1,6})?\s*)*)", text
    )
    ranks: list[int] = []
    for span in match[2].split() if match else ():
        first, _, last = span.partition("-")
        ranks += range(int(first), min(int(last or first), MOST_MEMBERS) + 1)
    if (
        (text and not ranks)
        or len(set(ranks)) < len(ranks)
        or max(ranks, default=0) >= MOST_MEMBERS
    ):
        raise TraceError(
            f"a group is its kind and its ranks, such as 'ep 0-3', not {text[:40]!r}: "
            "change the column group"
        )
    return Group(kind=(match and match[1]) or "ep", ranks=tuple(ranks))


def _values(
    call: Call, lines: pandas.DataFrame, group: Group, experts: int
) -> tuple[Int64, Int64]:
    """Return what each member of a group gives, and the other side of it."""
    member = {rank: at for at, rank in enumerate(group.ranks)}
    ends = ["of", "to"] if call.stage else ["of"]
    outside = set(np.unique(lines[ends])) - set(member)
    if outside:
        raise TraceError(
            f"an exchange is between the ranks of its group, but rank {min(outside)} "
            f"is not one of {list(group.ranks)[:20]}: change the column group"
        )
    of = lines["of"].map(member)
    to = lines["to"].map(member) if call.stage else lines["to"]
    given = np.zeros((len(member), len(member) if call.stage else experts), np.int64)
    given[of, to] = lines["value"]
    if call.stage:
        return given, given.T
    dropped = np.zeros_like(given)
    dropped[of, to] = lines["dropped"]
    return given, np.full_like(given, -1) if (dropped < 0).any() else dropped


def _add_exchanges(
    values: Values, groups: Mapping[str, Group], row_bytes: int, contents: Contents
) -> None:
    """Add the four exchanges of each routing, with contiguous blocks of experts.

    A layer that has exchanges on the same ranks, or whose group has exchanges of an
    unknown layer, gets none.
    """
    experts, own = contents.experts, set()
    held = {(c.layer, frozenset(groups[c.group].ranks)) for c in values if c.stage}
    for call, (tokens, dropped) in [v for v in values.items() if not v[0].stage]:
        group = groups[call.group]
        width, members = len(group.ranks), frozenset(group.ranks)
        if held & {(call.layer, members), (-1, members)}:
            own.add(call.layer)
            continue
        if experts % width:
            raise TraceError(
                "--row-bytes of routed tokens needs the same number of experts on each "
                f"rank, but there are {experts} experts on {width} ranks: change "
                "--experts, or leave --row-bytes out"
            )
        contents.placed[call.layer, group] = np.repeat(
            group.ranks, experts // width
        ).tolist()
        copies = (tokens - dropped.clip(0)).reshape(width, width, -1)
        sent = copies.sum(axis=2) * row_bytes
        for stage, phase in enumerate(PHASES, 1):
            exchange = call._replace(
                stage=stage,
                phase=phase,
                direction="backward" if "grad" in phase else "forward",
                row_bytes=row_bytes,
                call_source="inferred",
            )
            given = sent.T if phase in TRANSPOSED_PHASES else sent
            values[exchange] = given, given.T
    if contents.placed:
        contents.inferred.append(BY_ROW_BYTES)
    if own:
        layers = f"layer{'s' * (len(own) > 1)} {rank_span(sorted(own))}"
        contents.inferred.append(
            f"--row-bytes adds no exchanges to {layers}: the table has its own"
        )


def _add_rows(
    call: Call, values: tuple[Int64, Int64], group: Group, contents: Contents
) -> None:
    """Add the rows of all members of a call."""
    for rank, sent, received in zip(group.ranks, *values, strict=True):
        contents.rows.append(
            Row(
                rank=rank,
                operation=ALL_TO_ALL if call.stage else ROUTING,
                group=group,
                sent=sent,
                received=received,
                dtype=call.dtype,
                row_bytes=call.row_bytes,
                phase=call.phase,
                layer=call.layer,
                label=call.label,
                direction=call.direction,
                source=Source[call.call_source.upper() or "ANNOTATED"],
                iteration=call.iteration,
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
    return 0 < len(first) <= 2 * numbers or beginning.startswith("#")


MATRIX = Importer(
    name="matrix",
    what="a traffic matrix as text, such as nccl-tests' alltoallv reads",
    matches=matches_matrix,
    read=read_matrices,
)
