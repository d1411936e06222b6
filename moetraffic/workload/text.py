"""The text of a corpus: a file, a folder, a glob, Python's own source, or random bytes.

It is read without torch, so that a corpus that cannot be used is refused before any
rank starts.
"""

from __future__ import annotations

import glob
import os
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from moetraffic.errors import LayoutError

STANDARD_LIBRARY_BYTES = 4_000_000
"""Of the standard library's source, this much is read."""

RANDOM = "random"
"""Name of the corpus of random tokens; ``./random`` is a file of this name."""

LARGEST_BYTES = 2_000_000_000
"""A larger corpus is refused: every rank holds it in memory."""

_NO_TRAINING_TEXT = frozenset(
    {"test", "tests", "idle_test", "site-packages", "dist-packages"}
)
_READ_BYTES = 1 << 20  # at a time, where the text is only looked at


@dataclass(frozen=True, kw_only=True, eq=False)
class Text:
    """Bytes to train on, and where they come from."""

    data: bytearray  # [N]
    source: str  # "a file", "a folder" ... in words


def read(where: str = "", *, sequence: int = 1, vocabulary: int = 256) -> Text:
    """Read a corpus.

    Parameters
    ----------
    where
        A file; a folder, of which every file below it is read but hidden ones; or a
        glob (``**`` goes down folders).  Files are joined in the order of their paths.
        Empty: the ``*.py`` files of the running Python's standard library without its
        tests, the first 4 MB of them.  :data:`RANDOM`: as many independent random
        bytes below the vocabulary, all equally probable, the same in every run.
    sequence
        Tokens of a training sequence; the text must be longer.
    vocabulary
        Size of the model's vocabulary; every byte must be below it.

    Raises
    ------
    LayoutError
        If nothing is there, it cannot be read, or it is too short, too large, or
        holds bytes outside the vocabulary.
    """
    if where == RANDOM:
        return Text(data=_random(vocabulary), source="random tokens")
    source, files = _found(where)
    enough = LARGEST_BYTES + 1 if where else STANDARD_LIBRARY_BYTES
    data = _join(files, enough)
    data = data if where else data[:STANDARD_LIBRARY_BYTES]
    _refuse_size(source, len(data), sequence)
    if vocabulary < 256:
        _refuse_byte(source, max(data), vocabulary)
    return Text(data=data, source=source)


def check(where: str = "", *, sequence: int = 1, vocabulary: int = 256) -> None:
    """Refuse what :func:`read` refuses, without holding the text in memory.

    Raises
    ------
    LayoutError
        As :func:`read` does.
    """
    if where == RANDOM:
        return
    source, files = _found(where)
    size, largest = 0, 0
    for file in files:
        with _opened(file) as stream:
            if vocabulary >= 256:
                stream.read(1)  # what cannot be read says so at the first byte
                size += file.stat().st_size
                continue
            while part := stream.read(_READ_BYTES):
                size += len(part)
                largest = max(largest, *part)
        if size > LARGEST_BYTES or (not where and size >= STANDARD_LIBRARY_BYTES):
            break
    _refuse_size(source, size, sequence)
    if vocabulary < 256:
        _refuse_byte(source, largest, vocabulary)


def _random(vocabulary: int) -> bytearray:
    """Draw bytes of which none depends on those before, so that there is no context."""
    draws = np.random.default_rng(0)
    below = min(vocabulary, 256)
    return bytearray(
        draws.integers(below, size=STANDARD_LIBRARY_BYTES, dtype=np.uint8).tobytes()
    )


def _found(where: str) -> tuple[str, list[Path]]:
    """What the text is called, and its files in order."""
    if where:
        return where, _files(where)
    library = Path(sysconfig.get_path("stdlib"))
    return f"Python's standard library in {library}", _standard_library(library)


def _refuse_size(source: str, size: int, sequence: int) -> None:
    if size > LARGEST_BYTES:
        raise LayoutError(
            f"a corpus has at most {LARGEST_BYTES / 1e9:g} GB, but {source!r} has "
            "more: give --corpus a glob of fewer files"
        )
    if size < sequence + 2:
        raise LayoutError(
            f"a corpus needs at least {sequence + 2} bytes for sequences of {sequence} "
            f"tokens, but {source!r} has {size}: give --corpus more text or lower "
            "--sequence"
        )


def _refuse_byte(source: str, largest: int, vocabulary: int) -> None:
    if largest >= vocabulary:
        raise LayoutError(
            f"every byte of a corpus must be below the vocabulary, but {source!r} "
            f"holds {largest} and the vocabulary is {vocabulary}: use a vocabulary of "
            "256"
        )


def _files(where: str) -> list[Path]:
    """The files that a path or glob names, in order."""
    try:
        path = Path(where).expanduser()
        if path.is_dir():
            files = [
                file
                for file in path.rglob("*")
                if file.is_file() and not _hidden(file.relative_to(path))
            ]
        elif path.is_file():
            files = [path]
        else:
            found = glob.glob(str(path), recursive=True)
            files = [Path(name) for name in found if Path(name).is_file()]
    except (OSError, RuntimeError, ValueError):
        files = []  # a name that no file can have, or ~ of nobody
    if not files:
        raise LayoutError(
            f"a corpus is a file, a folder with files or a glob that matches files, "
            f"but {where[:200]!r} is none of them: check --corpus, or leave it out for "
            "the source text of Python's standard library"
        )
    return sorted(files)


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _standard_library(library: Path) -> list[Path]:
    """The library's own source files, in order."""
    files: list[Path] = []
    for folder, below, names in os.walk(library):
        # what is installed beside it has twenty times its files: not even listed
        below[:] = [name for name in below if name not in _NO_TRAINING_TEXT]
        files += [Path(folder, name) for name in names if name.endswith(".py")]
    return sorted(files, key=lambda file: file.relative_to(library).as_posix())


def _join(files: list[Path], enough: int) -> bytearray:
    """The files' bytes, read until there are enough."""
    data = bytearray()
    for file in files:
        with _opened(file) as stream:
            data += stream.read(enough)
        if len(data) >= enough:
            break
    return data


@contextmanager
def _opened(file: Path) -> Iterator[BinaryIO]:
    """Open a file of a corpus for reading; what the system refuses is a sentence."""
    try:
        with file.open("rb") as stream:
            yield stream
    except OSError as error:
        raise LayoutError(
            f"every file of a corpus must be readable, but {str(file)!r} is not "
            f"({error.strerror}): change its permissions or give --corpus another"
        ) from None
