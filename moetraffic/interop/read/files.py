"""Text and JSON of large or damaged files, and the values in them.

Any defect of a file is an error of one sentence, with the file's name and the place.
``NaN``, a comma after a last element and invalid UTF-8, which profilers write, are
read.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from moetraffic.errors import TraceError

LARGEST_FILE = 1 << 33  # characters of a JSON document
LARGEST_VALUE = 1 << 26  # characters of one line, bytes of one message
RANK = re.compile(r"rank[_\-.]?(\d{1,7})(?!\d)", re.I)
LAST_NUMBER = re.compile(r"(?:^|[_\-.])(\d{1,7})$")
SUFFIXES = ("json", "jsonl", "gz", "et", "trace", "pt", "log", "txt")
LARGEST = 2**62  # largest number that is imported
MOST_BYTES = 2**50  # of one call
MOST_TOKENS = 2**31 - 1  # of one rank for one expert
MOST_RANKS = 1 << 16
MOST_LAYERS = 1 << 20
MOST_ITERATIONS = 1 << 40


class UnreadableFile(TraceError):
    """Raised if an imported file is damaged or not of the expected format."""

    cut = False  # the file ends too early


def wrong(
    path: Path, what: str, remedy: str = "take a whole copy of it"
) -> UnreadableFile:
    """Create the error for an unreadable file from its defect and a remedy."""
    said = " ".join(what.split())
    return UnreadableFile(f"{path.name} cannot be imported, for {said}: {remedy}")


@contextmanager
def opened_bytes(path: Path) -> Iterator[IO[bytes]]:
    """Open a binary file; gzip compression is detected by content."""
    try:
        if not path.is_file():
            there = "it is no file" if path.exists() else "there is no such file"
            raise wrong(path, there, "name a file that exists")
        with path.open("rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            yield gzip.GzipFile(fileobj=raw) if packed else raw  # type: ignore[misc]
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise wrong(path, f"its compression is damaged ({error})") from None
    except OSError as error:
        raise wrong(path, f"the system says: {error.strerror or error}") from None


@contextmanager
def opened(path: Path) -> Iterator[io.TextIOWrapper]:
    """Open a text file; as :func:`opened_bytes`."""
    with opened_bytes(path) as stream:
        # event names may contain any bytes; the imported fields are ASCII
        yield io.TextIOWrapper(stream, "utf-8-sig", errors="replace")


def lines(path: Path) -> Iterator[str]:
    """Iterate over the lines of a text file, without line ends."""
    with opened(path) as text:
        while line := text.readline(LARGEST_VALUE):
            if len(line) == LARGEST_VALUE:
                raise wrong(path, f"a line has more than {LARGEST_VALUE} characters")
            yield line.rstrip("\r\n")


def read_json(path: Path, keep: Callable[[dict[str, Any]], Any] | None = None) -> Any:
    """Decode a JSON file, such as a profile of gigabytes.

    ``keep`` is called with each object, the innermost first; what it returns stands
    for the object, so that only what is needed stays in memory.
    """
    with opened(path) as text:
        content = text.read(LARGEST_FILE + 1)
    if len(content) > LARGEST_FILE:
        what = f"it has more than {LARGEST_FILE:,} characters"
        raise wrong(path, what, "record fewer steps")
    return _decoded(path, content, keep=keep)


def json_objects(
    path: Path, remarks: list[str]
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Iterate over the numbers of lines that hold a JSON object each, and the objects.

    A last line that is cut, as a killed program leaves it, is a remark.
    """
    cut: UnreadableFile | None = None
    number = 0
    for line, text in enumerate(lines(path), 1):
        if cut is not None:
            raise cut
        if not text.strip():
            continue
        try:
            value = _decoded(path, text, line=line)
        except UnreadableFile as error:
            if not (number and error.cut):
                raise
            cut = error
            continue
        if not isinstance(value, dict):
            what = f"line {line} is {text[:40]!r}, which is no object"
            raise wrong(path, what, "correct it there")
        number += 1
        yield line, value
    if cut is not None:
        remarks.append(f"the last record of {path.name} is cut")


def _decoded(
    path: Path,
    text: str,
    *,
    line: int = 1,
    keep: Callable[[dict[str, Any]], Any] | None = None,
) -> Any:
    """Decode JSON text that begins at a line of a file."""
    try:
        return json.loads(text, object_hook=keep)
    except RecursionError:
        why, place = "it is nested too deeply", ""
    except json.JSONDecodeError as error:
        before, after = text[: error.pos].rstrip(), text[error.pos :]
        if before.endswith(",") and after.startswith(("]", "}")):
            # some profilers leave a comma at the end
            return _decoded(path, before[:-1] + after, line=line, keep=keep)
        if not after.strip() or error.msg.startswith("Unterminated string"):
            last = line + text.rstrip().count("\n")
            cut = wrong(path, f"it is no JSON (it ends too early, in line {last})")
            cut.cut = True
            raise cut from None
        why = error.msg
        place = f" at line {line + error.lineno - 1}, character {error.colno}"
    except ValueError as error:  # such as too many digits
        why, place = str(error).partition(":")[0], ""
    raise wrong(path, f"it is no JSON ({why}{place})", "correct it there")


# ---- values -------------------------------------------------------------------------


def rank_in_name(path: Path) -> int | None:
    """Parse the rank from a file name: ``rank3``, or a number at its end.

    >>> rank_in_name(Path("et_rank_3.json.gz")), rank_in_name(Path("trace.json"))
    (3, None)
    """
    stem = path.name
    while "." in stem and stem.rpartition(".")[2].lower() in SUFFIXES:
        stem = stem.rpartition(".")[0]
    numbers = RANK.findall(stem) or LAST_NUMBER.findall(stem)
    return int(numbers[-1]) if numbers else None


def whole(value: Any, least: int = 0) -> int | None:
    """Convert a value to an integer of at least ``least``; None if it is not one."""
    if isinstance(value, str) and re.fullmatch(r"-?\d{1,18}", value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if least <= value <= LARGEST else None


def number(value: Any) -> float | None:
    """Convert a value to a finite number; None if it is not one."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < LARGEST else None


def words(value: Any, most: int = 200) -> str:
    """Convert a value to a string that a trace can store, "" if it is not text."""
    if not isinstance(value, str):
        return ""
    return value[:most].encode("utf-8", "replace").decode().replace("\0", "")


def integers(value: Any) -> tuple[list[int], bool] | None:
    """Convert a list, or its text, to non-negative integers; detect cut lists.

    torch cuts the text after 30 entries: ``"[3, 1, ...]"``.  Returns the integers and
    whether they are cut; None for other values.
    """
    cut = False
    if isinstance(value, str):
        inner = value.strip()
        if not (inner.startswith("[") and inner.endswith("]")):
            return None
        value = [text.strip() for text in inner[1:-1].split(",") if text.strip()]
        if value and value[-1] == "...":
            value, cut = value[:-1], True
    if not isinstance(value, list):
        return None
    numbers = [whole(v) for v in value]
    if None in numbers:
        return None
    return [n for n in numbers if n is not None], cut
