"""The text of a corpus: a file, a folder, a glob, Python's own source, or random bytes.

It is read without torch, so that a corpus that cannot be used is refused before any
rank starts.
"""

from __future__ import annotations

import glob
import os
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from moetraffic.errors import LayoutError

STANDARD_LIBRARY_BYTES = 4_000_000
"""Of the standard library's source, this much is read."""

RANDOM = "random"
"""Name of the corpus of random tokens; ``./random`` is a file of this name."""

LARGEST_BYTES = 2_000_000_000
"""A larger corpus is refused: every rank holds it in memory."""

_NO_TRAINING_TEXT = {"test", "tests", "idle_test", "site-packages", "dist-packages"}


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
        draws, below = np.random.default_rng(0), min(vocabulary, 256)
        drawn = draws.integers(below, size=STANDARD_LIBRARY_BYTES, dtype=np.uint8)
        return Text(data=bytearray(drawn.tobytes()), source="random tokens")
    source, files = _measured(where, sequence)
    try:
        data = bytearray().join(file.read_bytes() for file in files)
    except OSError as error:
        raise LayoutError(
            f"every file of a corpus must be readable, but {error.filename!r} is not "
            f"({error.strerror}): change its permissions or give --corpus another"
        ) from None
    data = data if where else data[:STANDARD_LIBRARY_BYTES]
    if vocabulary < 256 and (largest := max(data)) >= vocabulary:
        raise LayoutError(
            f"every byte of a corpus must be below the vocabulary, but {source!r} "
            f"holds {largest} and the vocabulary is {vocabulary}: use a vocabulary of "
            "256"
        )
    return Text(data=data, source=source)


def check(where: str = "", *, sequence: int = 1, vocabulary: int = 256) -> None:
    """Refuse what :func:`read` refuses but unreadable files; bytes are read only if
    they may be outside the vocabulary."""
    if vocabulary < 256:
        read(where, sequence=sequence, vocabulary=vocabulary)
    elif where != RANDOM:
        _measured(where, sequence)


def _measured(where: str, sequence: int) -> tuple[str, list[Path]]:
    """The name of a corpus and its files in order, which have enough bytes."""
    library = Path(sysconfig.get_path("stdlib"))
    source = where or f"Python's standard library in {library}"
    files, size = [], 0
    for file in _files(where) if where else _standard_library(library):
        files.append(file)
        size += file.stat().st_size
        if size > LARGEST_BYTES or (not where and size >= STANDARD_LIBRARY_BYTES):
            break
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
    return source, files


def _files(where: str) -> list[Path]:
    """The files that a path or glob names, in order."""
    files: list[Path] = []
    try:
        path = Path(where).expanduser()
        if path.is_dir():
            for file in path.rglob("*"):
                parts = file.relative_to(path).parts
                if file.is_file() and not any(part.startswith(".") for part in parts):
                    files.append(file)
        else:
            names = [path] if path.exists() else glob.glob(str(path), recursive=True)
            files = [Path(name) for name in names if Path(name).is_file()]
    except (OSError, RuntimeError, ValueError):
        files = []  # a name that no file can have, or ~ of nobody
    if not files:
        raise LayoutError(
            f"a corpus is a file, a folder with files or a glob that matches files, "
            f"but {where[:200]!r} is none of them: check --corpus, or leave it out for "
            "the source text of Python's standard library"
        )
    return sorted(files)


def _standard_library(library: Path) -> list[Path]:
    """The library's own source files, in order."""
    files: list[Path] = []
    for folder, below, names in os.walk(library):
        # what is installed beside it has twenty times its files: not even listed
        below[:] = [name for name in below if name not in _NO_TRAINING_TEXT]
        files += [Path(folder, name) for name in names if name.endswith(".py")]
    return sorted(files, key=lambda file: file.relative_to(library).as_posix())
