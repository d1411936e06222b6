"""Export a trace to tables (CSV, Parquet), NumPy arrays, and loads for EPLB.

A row of a table is a pair of ranks, or a rank and an expert.
:mod:`moetraffic.interop.exchange_table` imports the same columns, without loss.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from moetraffic.arrays import Int64
from moetraffic.errors import TraceError, install_command
from moetraffic.trace import ALL_TO_ALL, ROUTING, Source, Trace

from .exporter import Exporter, ExportOptions
from .frames import CELLS, by_width, find, other_operations, pairs, select_calls

if TYPE_CHECKING:
    import pandas

FLOAT32_EXACT = 2**24  # up to here, float32 represents all integers exactly
SAMPLED = "experts of sampled tokens are left out"
WIRE = [
    *("iteration", "layer", "phase", "source", "destination", "bytes", "micro_batch"),
    *("group", "row_bytes", "dtype", "label", "direction"),
    *("call_source", "step_source"),
]
DEMAND = [
    *("iteration", "layer", "rank", "expert", "tokens", "micro_batch", "group"),
    *("dropped", "call_source", "step_source"),
]


# ---- long tables ---------------------------------------------------------------------


def long_table(
    trace: Trace, options: ExportOptions
) -> tuple[Iterator[pandas.DataFrame], list[str]]:
    """Return the rows of a table in blocks, site by site, and what is left out."""
    lost = ["times, losses and the placement of experts are left out"]
    if options.of == "demand":
        chosen = trace.complete(find(trace, options, operation=ROUTING))
        if not len(chosen):
            raise TraceError(
                "a table of demand needs routing, but none that fits was seen: capture "
                "the router, or export what was sent"
            )
        if any(site.token_sample for site in trace.sites):
            lost.append(SAMPLED)
    else:
        unnamed = replace(options, unnamed=True)
        chosen, notes = select_calls(trace, unnamed, operation=ALL_TO_ALL)
        lost = [*notes, *other_operations(trace), *lost]
    site = trace.occurrences.site[chosen]
    chosen = chosen[np.argsort(site, kind="stable")]
    if options.of == "demand":
        return _labeled(trace, chosen, _routed(trace, chosen), DEMAND), lost
    return _labeled(trace, chosen, pairs(trace, chosen), WIRE), lost


def _routed(trace: Trace, chosen: Int64) -> Iterator[pandas.DataFrame]:
    """Yield the token copies of routings, a row per call, rank and expert."""
    import pandas

    for number in np.unique(trace.occurrences.site[chosen]).tolist():
        site = trace.sites[number]
        calls = np.flatnonzero(trace.occurrences.site[chosen] == number)
        step = max(1, CELLS // (trace.size(int(chosen[calls[0]])) * site.experts))
        for begin in range(0, len(calls), step):
            rows = calls[begin : begin + step]
            tokens = trace.demand(chosen[rows]).astype(np.int64)
            columns = {
                "call": rows[:, None, None],
                "rank": trace.members(chosen[rows])[:, :, None],
                "expert": np.arange(site.experts),
                "tokens": tokens,
            }
            if site.dropped.known:
                columns["dropped"] = trace.dropped(chosen[rows]).astype(np.int64)
            flat = {
                n: np.broadcast_to(v, tokens.shape).ravel() for n, v in columns.items()
            }
            table = pandas.DataFrame(flat)
            if not site.dropped.known:
                table["dropped"] = None
            yield table.astype({"dropped": "Int64"})


def _labeled(
    trace: Trace,
    chosen: Int64,
    tables: Iterator[pandas.DataFrame],
    columns: list[str],
) -> Iterator[pandas.DataFrame]:
    """Add what is known of a call's site and step, and keep the named columns."""
    import pandas

    of_site = pandas.DataFrame(
        {
            "layer": s.layer,
            "phase": s.phase,
            "micro_batch": s.slot,
            "group": " ".join(
                [trace.groups[s.group].kind, *map(str, trace.groups[s.group].ranks)]
            ),
            "row_bytes": s.row_bytes,
            "dtype": s.dtype,
            "label": s.label,
            "direction": s.direction or "unknown",
            "call_source": s.source.name.lower(),
        }
        for s in trace.sites
    )
    texts = of_site.select_dtypes(exclude="number").columns
    of_site = of_site.astype(dict.fromkeys(texts, "category"))
    names = [source.name.lower() for source in Source]
    for table in tables:
        call = table.pop("call").to_numpy()
        iteration = trace.occurrences.iteration[chosen[call]]
        site = of_site.iloc[trace.occurrences.site[chosen[call]]]
        table = table.join(site.set_index(table.index))
        steps = pandas.Categorical.from_codes(trace.steps.sources(iteration), names)
        yield table.assign(iteration=iteration, step_source=steps)[columns]


def write_csv(trace: Trace, path: Path, options: ExportOptions) -> list[str]:
    """Write the table as CSV with a header."""
    tables, lost = long_table(trace, options)
    for number, table in enumerate(tables):
        table.to_csv(
            path, mode="a", header=not number, index=False, lineterminator="\n"
        )
    return lost


def write_parquet(trace: Trace, path: Path, options: ExportOptions) -> list[str]:
    """Write the table as Parquet, with the trace's metadata in the schema."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise TraceError(
            "Parquet needs pyarrow, which is not installed: "
            f"{install_command('tables')}"
        ) from None

    tables, lost = long_table(trace, options)
    about = {f"moetraffic.{k}": str(v) for k, v in trace.meta.as_dict().items()}
    writer = None
    try:
        for frame in tables:
            table = pa.Table.from_pandas(frame, preserve_index=False)
            table = table.replace_schema_metadata(about)
            if writer is None:
                writer = pq.ParquetWriter(path, table.schema, compression="zstd")
            writer.write_table(table)
    finally:
        if writer is not None:
            writer.close()
    return lost


# ---- arrays --------------------------------------------------------------------------


def write_npz(trace: Trace, path: Path, options: ExportOptions) -> list[str]:
    """Write matrices and demand as ``.npz`` without pickled objects.

    For each group size W: ``wire_W`` ``[n, W, W]`` int64 bytes, and of its rows
    ``wire_W_iteration``, ``_layer``, ``_phase``, ``_direction``, ``_label``,
    ``_micro_batch``, ``_row_bytes``, ``_ranks`` ``[n, W]`` and ``_issue_ns``,
    ``_end_ns`` ``[n, W]``.  For each size and number of experts E: ``demand_WxE``
    ``[n, W, E]`` int32 token copies, and ``_iteration``, ``_layer``, ``_micro_batch``,
    ``_ranks``.  ``step_iteration`` ``[S]``, ``step_loss`` ``[S, R]``.
    """
    lost: list[str] = []
    sent = np.zeros(0, np.int64)
    try:
        unnamed = replace(options, unnamed=True)
        sent, lost = select_calls(trace, unnamed, operation=ALL_TO_ALL)
    except TraceError:
        lost.append("no all-to-all with known bytes fits")
    routed = trace.complete(find(trace, options, operation=ROUTING))
    if not len(sent) and not len(routed):
        raise TraceError(
            f"arrays need an all-to-all or a routing, but none of {trace.name} fits: "
            f"its MoE layers are {list(trace.layers)}; select other "
            "iterations or layers"
        )
    experts = np.array([s.experts for s in trace.sites], np.int64)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for rows in by_width(trace, sent):
            _add_calls(archive, trace, sent[rows])
        for rows in by_width(trace, routed):
            count = experts[trace.occurrences.site[routed[rows]]]
            for number in np.unique(count):
                _add_calls(archive, trace, routed[rows][count == number])
        for name in ("iteration", "loss", "source"):
            _add(archive, f"step_{name}", getattr(trace.steps, name))
    sampled = [SAMPLED] if any(site.token_sample for site in trace.sites) else []
    return [
        *lost,
        *sampled,
        *other_operations(trace),
        "where experts lie is left out",
    ]


def _add_calls(archive: zipfile.ZipFile, trace: Trace, calls: Int64) -> None:
    """Write all-to-alls of one size, or routings also of one number of experts."""
    sites = [trace.sites[s] for s in trace.occurrences.site[calls]]
    width = trace.size(int(calls[0]))
    read: Callable[[Int64], npt.NDArray[Any]] = trace.wire
    name, columns, dtype = f"wire_{width}", width, "<i8"
    routing = sites[0].operation == ROUTING
    if routing:
        columns, dtype = sites[0].experts, "<i4"
        name, read = f"demand_{width}x{columns}", trace.demand
    step = max(1, CELLS // (width * columns))
    chunks = (read(calls[b : b + step]) for b in range(0, len(calls), step))
    shape = (len(calls), width, columns)
    _add(archive, name, chunks=chunks, shape=shape, dtype=dtype)
    fields = {"layer": "layer", "micro_batch": "slot"}
    if not routing:
        fields |= {n: n for n in ("phase", "direction", "label", "row_bytes")}
    _add(archive, f"{name}_iteration", trace.occurrences.iteration[calls])
    for column, field in fields.items():
        _add(archive, f"{name}_{column}", np.array([getattr(s, field) for s in sites]))
    _add(archive, f"{name}_ranks", trace.members(calls))
    _add(archive, f"{name}_source", np.array([s.source for s in sites], np.uint8))
    if not routing:
        issue, _, end = trace.times(calls)
        _add(archive, f"{name}_issue_ns", issue)
        _add(archive, f"{name}_end_ns", end)


def _add(
    archive: zipfile.ZipFile,
    name: str,
    values: npt.NDArray[Any] | None = None,
    *,
    chunks: Iterable[npt.NDArray[Any]] = (),
    shape: tuple[int, ...] = (),
    dtype: str = "",
) -> None:
    """Write an array to the archive, whole or in chunks along its first axis."""
    if values is not None:
        chunks, shape, dtype = [values], values.shape, values.dtype.str
    header = {"descr": dtype, "fortran_order": False, "shape": shape}
    with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
        np.lib.format.write_array_header_1_0(file, header)
        for chunk in chunks:
            file.write(np.ascontiguousarray(chunk, dtype).tobytes())


def write_eplb(trace: Trace, path: Path, options: ExportOptions) -> list[str]:
    """Write expert loads ``[layers, experts]`` int64, summed over all iterations.

    ``rebalance_experts(weight, ...)`` of deepseek-ai/EPLB ``eplb.py`` takes
    ``torch.from_numpy(numpy.load("load.npy"))`` and converts it to float32.  SGLang's
    ``--init-expert-location load.json`` reads JSON with a row for every layer from 0.
    """
    calls = find(trace, options, operation=ROUTING, direction="forward")
    calls = trace.complete(calls)
    used = trace.occurrences.site[calls]
    sites = [trace.sites[n] for n in np.unique(used)]
    experts, layers = {s.experts for s in sites}, sorted({s.layer for s in sites})
    if len(experts) != 1:
        raise TraceError(
            "a load tensor has a column an expert, alike in all layers, but "
            f"{trace.name} shows layers of {sorted(experts) or 'no'} experts: capture "
            "the router, or choose a layer"
        )
    load = np.zeros((len(layers), experts.pop()), np.int64)
    for number in np.unique(used).tolist():
        own, row = calls[used == number], layers.index(trace.sites[number].layer)
        step = max(1, CELLS // (trace.size(int(own[0])) * load.shape[1]))
        for begin in range(0, len(own), step):
            demand = trace.demand(own[begin : begin + step])
            load[row] += demand.sum(axis=(0, 1), dtype=np.int64)
    rows = f"rows are the MoE layers {', '.join(map(str, layers))}, in this order"
    if path.suffix == ".json":
        whole = np.zeros((max(layers) + 1, load.shape[1]), np.int64)
        whole[layers] = load
        path.write_text(json.dumps({"logical_count": whole.tolist()}))
        rows = f"rows are the layers 0 to {max(layers)}, 0 in those without experts"
    else:
        with path.open("wb") as file:
            np.save(file, load, allow_pickle=False)
    lost = [
        rows,
        "token copies are summed over ranks, micro-batches and iterations",
    ]
    if int(load.max(initial=0)) > FLOAT32_EXACT:
        lost.append(
            f"EPLB makes them float32, which rounds loads above {FLOAT32_EXACT}"
        )
    return lost


CSV = Exporter(
    name="csv",
    what="one line per pair of ranks and call; with --of demand per rank and expert",
    readers="moetraffic import, spreadsheets, anything",
    limits="exact",
    suffix=".csv",
    write=write_csv,
)
PARQUET = Exporter(
    name="parquet",
    what="the lines of csv, with the trace's meta in the schema",
    readers="pandas, polars, DuckDB, Spark",
    limits="exact; needs pyarrow",
    suffix=".parquet",
    write=write_parquet,
)
NPZ = Exporter(
    name="npz",
    what="matrices [n, W, W], demand [n, W, E] and the labels of their rows",
    readers="numpy.load, and whatever numpy feeds",
    limits="exact; nothing pickled",
    suffix=".npz",
    write=write_npz,
)
EPLB = Exporter(
    name="eplb",
    what="token copies of each layer and expert, .npy, or .json for SGLang",
    readers="EPLB's rebalance_experts, vLLM, SGLang",
    limits="float32 there: exact up to 2^24 copies",
    suffix=".npy",
    write=write_eplb,
)
