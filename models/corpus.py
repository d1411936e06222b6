"""Byte-level text to train on: a file, a folder, a glob, or Python's own source."""

from __future__ import annotations

import glob
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from moetraffic.errors import LayoutError

from .randomness import Stream, generator

STANDARD_LIBRARY_BYTES = 4_000_000
"""Of the standard library's source, this much is read."""

LARGEST_BYTES = 2_000_000_000
"""A larger corpus is refused: every rank holds it in memory."""

_NO_TRAINING_TEXT = frozenset(
    {"test", "tests", "idle_test", "site-packages", "dist-packages"}
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Corpus:
    """A text as bytes, and where it comes from."""

    text: Tensor  # [N] uint8
    source: str  # "a file", "a folder" ... in words

    def batch(
        self,
        *,
        sequences: int,
        length: int,
        seed: int,
        iteration: int,
        micro_batch: int,
        rank: int,
    ) -> tuple[Tensor, Tensor]:
        """Sequences from random places, decided by the last four arguments alone.

        Parameters
        ----------
        sequences, length
            B sequences of S tokens; the text must be longer than S.
        seed, iteration, micro_batch, rank
            The key of the draw; ``rank`` is the data-parallel rank.

        Returns
        -------
        tokens, targets
            ``[B, S]`` int64 each; a target is the token that follows.
        """
        draws = generator(Stream.BATCH, seed, iteration, micro_batch, rank)
        last = len(self.text) - length
        begins = torch.randint(last, (sequences,), generator=draws)
        places = begins.unsqueeze(1) + torch.arange(length + 1)
        window = self.text[places].long()  # [B, S + 1]
        return window[:, :-1], window[:, 1:]


def load(where: str = "", *, sequence: int = 1, vocabulary: int = 256) -> Corpus:
    """Read a corpus.

    Parameters
    ----------
    where
        A file; a folder, of which every file below it is read but hidden ones; or a
        glob (``**`` goes down folders).  Files are joined in the order of their paths.
        Empty: the ``*.py`` files of the running Python's standard library without its
        tests, the first 4 MB of them.
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
    if where:
        source = where
        data = _join(_files(where), LARGEST_BYTES + 1)
        if len(data) > LARGEST_BYTES:
            raise LayoutError(
                f"a corpus has at most {LARGEST_BYTES / 1e9:g} GB, but {where!r} has "
                "more: give --corpus a glob of fewer files"
            )
    else:
        library = Path(sysconfig.get_path("stdlib"))
        source = f"Python's standard library in {library}"
        data = _join(_standard_library(library), STANDARD_LIBRARY_BYTES)
        data = data[:STANDARD_LIBRARY_BYTES]
    if len(data) < sequence + 2:
        raise LayoutError(
            f"a corpus needs at least {sequence + 2} bytes for sequences of {sequence} "
            f"tokens, but {source!r} has {len(data)}: give --corpus more text or lower "
            "--sequence"
        )
    text = np.frombuffer(data, np.uint8)
    if int(text.max()) >= vocabulary:
        raise LayoutError(
            f"every byte of a corpus must be below the vocabulary, but {source!r} "
            f"holds {int(text.max())} and the vocabulary is {vocabulary}: use a "
            "vocabulary of 256"
        )
    return Corpus(text=torch.from_numpy(text), source=source)


def _files(where: str) -> list[Path]:
    """The files that a path or glob names, in order."""
    path = Path(where).expanduser()
    if path.is_dir():
        files = [
            file
            for file in path.rglob("*")
            if file.is_file()
            and not any(part.startswith(".") for part in file.relative_to(path).parts)
        ]
    elif path.is_file():
        files = [path]
    else:
        found = glob.glob(str(path), recursive=True)
        files = [Path(name) for name in found if Path(name).is_file()]
    if not files:
        raise LayoutError(
            f"a corpus is a file, a folder with files or a glob that matches files, "
            f"but {where!r} is none of them: check --corpus, or leave it out for the "
            "source text of Python's standard library"
        )
    return sorted(files)


def _standard_library(library: Path) -> list[Path]:
    """The library's own source files, in order."""
    files = [
        file
        for file in library.rglob("*.py")
        if _NO_TRAINING_TEXT.isdisjoint(file.relative_to(library).parts)
    ]
    return sorted(files, key=lambda file: file.relative_to(library).as_posix())


def _join(files: list[Path], enough: int) -> bytearray:
    """The files' bytes, read until there are enough."""
    data = bytearray()
    for file in files:
        try:
            with file.open("rb") as stream:
                data += stream.read(enough)
        except OSError as error:
            raise LayoutError(
                f"every file of a corpus must be readable, but {str(file)!r} is not "
                f"({error.strerror}): change its permissions or give --corpus another"
            ) from error
        if len(data) >= enough:
            break
    return data
