"""Detect the format of an input file from its beginning."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from moetraffic.errors import TraceError

from .json_reader import opened

FORMATS = {
    "profiler": "torch.profiler's export_chrome_trace",
    "execution-trace": "torch's ExecutionTraceObserver",
    "megatron": "Megatron-Core's router_trace_rank*.jsonl",
    "nccl-inspector": "NCCL Inspector's JSON",
    "matrix": "a traffic matrix as text, such as nccl-tests' alltoallv reads",
    "csv": "iteration,layer,phase,source,destination,bytes",
}

BEGINNING = 1 << 16  # characters
MOST_FILES = 100_000
MARKS = (  # format, and strings that the beginning of its files contains
    ("execution-trace", ('"schema"', '"nodes"')),
    ("megatron", ('"top_indices"',)),
    ("megatron", ('"num_tokens"', '"topk"')),
    ("nccl-inspector", ('"header"', '"n_ranks"')),
    ("profiler", ('"traceEvents"',)),
    ("profiler", ('"schemaVersion"',)),
    ("profiler", ('"ph"',)),
)


def choose(paths: Sequence[Path], format: str) -> tuple[str, list[Path]]:
    """List the files to import, and detect their common format.

    Parameters
    ----------
    paths
        Files, or folders of them.
    format
        One of FORMATS, or "" to detect it.

    Raises
    ------
    TraceError
        If there are no files, or files of several formats.
    """
    if format and format not in FORMATS:
        raise TraceError(
            f"a format is one of {', '.join(FORMATS)}, not {format[:40]!r}: change "
            "--from"
        )
    files: list[Path] = []
    found: set[str] = set()
    for path in paths:
        for file in _within(path):
            # files of other formats in a folder are ignored
            told = format if format and not path.is_dir() else detect(file)
            if told and (not format or told == format):
                files.append(file)
                found.add(told)
            elif not path.is_dir():
                raise TraceError(
                    f"{path.name} begins like none of the formats "
                    f"{', '.join(FORMATS)}: name its format with --from"
                )
    if not files:
        what = f" of format {format}" if format else " of a known format"
        raise TraceError(
            f"there is no file{what} in {', '.join(map(str, paths))[:200]}: the "
            f"formats are {', '.join(FORMATS)}"
        )
    if len(found) > 1:
        raise TraceError(
            f"files of one format are imported at a time, but these are of "
            f"{' and '.join(sorted(found))}: choose with --from"
        )
    return found.pop(), list(dict.fromkeys(files))


def _within(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    files = sorted(f for f in path.rglob("*") if f.is_file())
    if len(files) > MOST_FILES:
        raise TraceError(
            f"{path} holds {len(files)} files, more than {MOST_FILES}: name them"
        )
    return [f for f in files if not f.name.startswith(".")]


def detect(path: Path) -> str:
    """Detect the format of a file; "" if it is unknown.

    Raises
    ------
    UnreadableFile
        If the file cannot be read.
    """
    with opened(path) as text:
        beginning = text.read(BEGINNING).lstrip()
    if beginning[:1] in ("{", "["):
        fits = (f for f, marks in MARKS if all(m in beginning for m in marks))
        return next(fits, "")
    first = beginning.partition("\n")[0].replace(" ", "")
    if first.startswith("iteration,") or ",iteration," in f",{first.strip()},":
        return "csv"
    numbers = first.partition("#")[0].replace(",", "").strip()
    told = numbers and set(numbers) <= set("0123456789.KMGBe+\t")
    return "matrix" if told or beginning.startswith("#") else ""
