"""Streaming readers for large or damaged JSON and text files.

A profile of one rank may have gigabytes.  Its events are read one at a time from a
buffer little larger than an event; only what an importer keeps stays in memory.  Any
defect of a file raises an error of one sentence with the name of the file.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from moetraffic.errors import TraceError

PIECE = 1 << 20  # characters read at a time
LARGEST_VALUE = 1 << 26  # characters of one event, line or field
GZIP = b"\x1f\x8b"
AFTER = ",]}: \t\r\n"  # characters that may follow a value
SPACE = re.compile(r"[ \t\r\n]*")
LARGEST = 2**62  # largest number that is imported
MOST_BYTES = 2**50  # of one call
MOST_TOKENS = 2**31 - 1  # of one rank for one expert
MOST_RANKS = 1 << 16
MOST_LAYERS = 1 << 20
MOST_ITERATIONS = 1 << 40


class UnreadableFile(TraceError):
    """Raised if an imported file is damaged or not of the expected format."""


def wrong(
    path: Path, what: str, remedy: str = "take a whole copy of it"
) -> UnreadableFile:
    """Create the error for an unreadable file from its defect and a remedy."""
    return UnreadableFile(f"{path.name} cannot be imported, for {what}: {remedy}")


@contextmanager
def opened(path: Path) -> Iterator[io.TextIOBase]:
    """Open a text file; as :func:`opened_bytes`."""
    with opened_bytes(path) as stream:
        # event names may contain any bytes; the imported fields are ASCII
        yield io.TextIOWrapper(stream, "utf-8-sig", errors="replace")


@contextmanager
def opened_bytes(path: Path) -> Iterator[Any]:
    """Open a binary file; gzip compression is detected by content."""
    try:
        if not path.is_file():
            there = "it is no file" if path.exists() else "there is no such file"
            raise wrong(path, there, "name a file that exists")
        with path.open("rb") as raw:
            packed = raw.read(2) == GZIP
            raw.seek(0)
            yield gzip.GzipFile(fileobj=raw) if packed else raw
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise wrong(path, f"its compression is damaged ({error})") from None
    except OSError as error:
        raise wrong(path, f"the system says: {error.strerror or error}") from None


class JsonStream:
    """Incremental reader of an opened JSON document; the path is for error messages."""

    def __init__(self, path: Path, text: io.TextIOBase) -> None:
        self._path, self._text = path, text
        self._buffer, self._at = "", 0
        self._lines, self._column = 0, 0  # before the buffer
        self._decode = json.JSONDecoder().raw_decode
        self.ended = False  # too early

    def members(self, streamed: str) -> Iterator[tuple[str, Any]]:
        """Iterate over names and values of the document's top-level object.

        The elements of the array ``streamed`` are yielded one by one, with its name; a
        document that is an array is treated as this member.
        """
        if self._take("[{") == "[":
            yield from self._elements(streamed)
            return
        while self._peek() != "}":
            name = self.value()
            if not isinstance(name, str):
                raise self._bad("a name that is no text")
            self._take(":")
            if name == streamed and self._peek() == "[":
                self._take("[")
                yield from self._elements(name)
            else:
                yield name, self.value()
            if self._take(",}") == "}":
                return

    def ends(self) -> bool:
        """Return whether the document has no further values."""
        return not self._skip()

    def _elements(self, name: str) -> Iterator[tuple[str, Any]]:
        while self._peek() != "]":  # some profilers leave a comma at the end
            yield name, self.value()
            if self._take(",]") == "]":
                return
        self._take("]")

    def _more(self) -> bool:
        """Read the next chunk into the buffer; return whether there was one."""
        piece = self._text.read(max(PIECE, len(self._buffer) - self._at))
        self._lines, self._column = self._place()
        self._buffer, self._at = self._buffer[self._at :] + piece, 0
        return bool(piece)

    def _place(self) -> tuple[int, int]:
        """Return the lines before the next character, and those before it there."""
        before = self._buffer[: self._at]
        newline = before.rfind("\n")
        if newline < 0:
            return self._lines, self._column + len(before)
        return self._lines + before.count("\n"), len(before) - newline - 1

    def _skip(self) -> str:
        """Skip whitespace; return the next character, or "" at the end."""
        while True:
            found = SPACE.match(self._buffer, self._at)
            assert found is not None
            self._at = found.end()
            if self._at < len(self._buffer):
                return self._buffer[self._at]
            if not self._more():
                return ""

    def _peek(self) -> str:
        found = self._skip()
        if not found:
            self.ended = True
            raise self._bad("it ends too early")
        return found

    def _take(self, allowed: str) -> str:
        found = self._peek()
        if found not in allowed:
            raise self._bad(f"there is {found!r} where one of {allowed!r} is due")
        self._at += 1
        return found

    def value(self) -> Any:
        """Decode the next JSON value; UnreadableFile if it is no JSON, or cut."""
        self._peek()
        while True:
            try:
                value, end = self._decode(self._buffer, self._at)
            except RecursionError:
                raise self._bad("it is nested too deeply") from None
            except ValueError as error:
                value, end, why = None, -1, str(error).split(":")[0]
            # a number at the end of the buffer may continue in the next chunk
            rest = self._buffer[end : end + 1] if end >= 0 else ""
            if rest and (rest in AFTER or not isinstance(value, int | float)):
                self._at = end
                return value
            if len(self._buffer) - self._at > LARGEST_VALUE:
                raise self._bad(f"one value has more than {LARGEST_VALUE} characters")
            if not self._more():
                if end >= 0:
                    self._at = end
                    return value
                raise self._cut(why)

    def _cut(self, why: str) -> UnreadableFile:
        """Return the error for a value that is damaged, or cut at the end."""
        try:
            self._decode(self._buffer, self._at)
        except ValueError as error:
            if not isinstance(error, json.JSONDecodeError):
                return self._bad(why)
            self.ended = error.pos >= len(self._buffer.rstrip()) or (
                error.msg.startswith("Unterminated string")
            )
            self._at = self._at if self.ended else error.pos
        return self._bad("it ends too early" if self.ended else why)

    def _bad(self, why: str) -> UnreadableFile:
        if self.ended:
            return wrong(self._path, f"it is no JSON ({why})")
        line, column = self._place()
        there = f"it is no JSON ({why} at line {line + 1}, character {column + 1})"
        return wrong(self._path, there, "correct it there")


def json_lines(path: Path, remarks: list[str]) -> Iterator[dict[str, Any]]:
    """Iterate over the JSON objects of a file, on one line or several each.

    A last object that is cut, as a killed program leaves it, is a remark.
    """
    with opened(path) as text:
        stream, number = JsonStream(path, text), 0
        while not stream.ends():
            try:
                value = stream.value()
            except UnreadableFile:
                if not (stream.ended and number):
                    raise
                remarks.append(f"the last record of {path.name} is cut")
                return
            number += 1
            if not isinstance(value, dict):
                raise wrong(path, f"it holds {str(value)[:40]!r}, which is no object")
            yield value


def lines(path: Path) -> Iterator[str]:
    """Iterate over the lines of a text file, without line ends."""
    with opened(path) as text:
        while line := text.readline(LARGEST_VALUE):
            if len(line) == LARGEST_VALUE:
                raise wrong(path, f"a line has more than {LARGEST_VALUE} characters")
            yield line.rstrip("\r\n")


def whole(value: Any, least: int = 0) -> int | None:
    """Convert a value to an integer of at least ``least``; None if it is not one."""
    if isinstance(value, str) and re.fullmatch(r"-?\d{1,18}", value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if least <= value <= LARGEST else None


def words(value: Any, most: int = 200) -> str:
    """Convert a value to a string that a trace can store, "" if it is not text."""
    if not isinstance(value, str):
        return ""
    return value[:most].encode("utf-8", "replace").decode().replace("\0", "")


def number(value: Any) -> float | None:
    """Convert a value to a finite number; None if it is not one."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < LARGEST else None


def integers(value: Any) -> tuple[list[int], bool] | None:
    """Convert a list, or its text, to non-negative integers; detect truncated lists.

    torch truncates the text after 30 entries: ``"[3, 1, ...]"``.  Returns the integers
    and whether they are truncated; None for other values.
    """
    cut = False
    if isinstance(value, str):
        inner = value.strip()
        if not (inner.startswith("[") and inner.endswith("]")):
            return None
        parts = [p.strip() for p in inner[1:-1].split(",") if p.strip()]
        if parts and parts[-1] == "...":
            parts, cut = parts[:-1], True
        value = [whole(p) for p in parts]
    if not isinstance(value, list):
        return None
    found = [whole(v) for v in value]
    if any(v is None for v in found):
        return None
    return [v for v in found if v is not None], cut
