"""Damage files of other tools, models and segments.

A file is made from its number alone.  ``campaign`` in ``tests/trace`` reads them in
processes under limits of time and memory, and ``judge`` there says how it went.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import judge
import numpy as np
from conftest import make_trace
from mutations import FORGED, PLAIN, metadata
from rewrites import REWRITES, reseal, rewritten, segments
from samples import INSPECTED, OBSERVED, PROFILE, ROUTED, mutated

from moetraffic.data import path as data_path
from moetraffic.generate import TrafficModel
from moetraffic.interop import ImportOptions, import_files
from moetraffic.interop.export import ExportOptions, export_trace
from moetraffic.trace.segments.segment import rank_folder, write_segment

MATRIX = "# two steps\n0 2.9 7\n1 3 4\n2 2 2\n\n4,5K,1\n6e1 1.5K 0 # sizes\n1 2 3\n"
MODEL = "traffic-top2-balanced-early.h5"
EXTREMES = ("0", "-1", "1e999", "nan", "2147483648", "9" * 19, "9" * 5000, "0x10", "''")
JSON = {
    "profiler": PROFILE,
    "execution-trace": OBSERVED,
    "megatron": ROUTED,
    "nccl-inspector": INSPECTED,
}
OPTIONS = (
    ImportOptions(),
    ImportOptions(ranks=3),
    ImportOptions(experts=8, k=2),
)


class ForeignFiles:
    """Sound files of each kind, and their damaging by number."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        trace = make_trace()
        few = range(2)
        for name, of in (("sent", "wire"), ("routed", "demand")):
            options = ExportOptions(of=of, iterations=few)
            export_trace(trace, folder / f"{name}.csv", "csv", options=options)
        export_trace(
            trace, folder / "chakra", "chakra", options=ExportOptions(iterations=few)
        )
        self.csv = [(folder / f"{n}.csv").read_bytes() for n in ("sent", "routed")]
        self.chakra = {p.name: p.read_bytes() for p in (folder / "chakra").iterdir()}
        self.model = Path(str(data_path(MODEL))).read_bytes()
        segment = segments()[0]
        rank_folder(folder, segment.rank).mkdir(parents=True, exist_ok=True)
        path = rank_folder(folder, segment.rank) / "segment-000000.h5"
        write_segment(segment, folder)
        self.segment = (path.read_bytes(), segment)
        for data in (self.model, self.segment[0]):
            metadata(data)  # kept by it

    def move(self, folder: Path) -> None:
        """Damage files in a folder of a process's own: nothing is shared."""

    def judged(self, number: int, folder: Path) -> tuple[str, judge.Judged]:
        """Make file ``number`` and read it; what was done to it, and how it went."""
        rng = np.random.default_rng([36, number])
        kinds: tuple[Callable[..., tuple[str, judge.Judged]], ...]
        kinds = (self._json, self._table, self._chakra, self._model, self._segment)
        chances = [0.45, 0.2, 0.2, 0.1, 0.05]
        return kinds[int(rng.choice(5, p=chances))](rng, folder)

    def _json(self, rng: np.random.Generator, folder: Path) -> Any:
        format = list(JSON)[int(rng.integers(len(JSON)))]
        path = folder / "rank0.json"
        changed, how = JSON[format], "as it is"
        if rng.random() < 0.75:
            changed, how = mutated(changed, rng), "any value anywhere"
        data = json.dumps(changed).encode()
        if rng.random() < 0.4:
            data, how = _damaged(data, rng)
        path.write_bytes(data)
        return f"{format}, {how}", _imported([path], format, rng)

    def _table(self, rng: np.random.Generator, folder: Path) -> Any:
        which = int(rng.integers(3))
        format, path = ("matrix", "csv", "csv")[which], folder / f"table-{which}"
        data = (MATRIX.encode(), *self.csv)[which]
        data, how = _damaged(data, rng)
        path.write_bytes(data)
        return f"{format}, {how}", _imported([path], format, rng)

    def _chakra(self, rng: np.random.Generator, folder: Path) -> Any:
        inside = folder / "chakra"
        inside.mkdir(exist_ok=True)
        victim, how = sorted(self.chakra)[int(rng.integers(len(self.chakra)))], ""
        for name, data in self.chakra.items():
            if name == victim:
                data, how = _damaged(data, rng)
            (inside / name).write_bytes(data)
        paths = [inside / name for name in self.chakra]
        return f"chakra, {how}", _imported(paths, "chakra", rng)

    def _model(self, rng: np.random.Generator, folder: Path) -> Any:
        path = folder / "model.h5"
        draw = rng.random()
        if draw < 0.3:
            path.write_bytes(self.model)
            change = REWRITES[int(rng.integers(len(REWRITES)))]
            how = f"{change.__name__}, resealed"
            try:
                rewritten(path, lambda file: change(file, rng))
                reseal(path)
            except (KeyError, OSError, TypeError, ValueError):
                path.write_bytes(self.model)  # it has not what is changed
        else:
            chosen = FORGED if draw < 0.5 else PLAIN
            mutation = chosen[int(rng.integers(len(chosen)))]
            how = mutation.__name__
            path.write_bytes(mutation(self.model, rng))
        return f"model, {how}", judge.judged(_sampled, path)

    def _segment(self, rng: np.random.Generator, folder: Path) -> Any:
        data, segment = self.segment
        path = folder / "segment-000000.h5"
        chosen = FORGED if rng.random() < 0.4 else PLAIN
        mutation = chosen[int(rng.integers(len(chosen)))]
        path.write_bytes(mutation(data, rng))
        found = judge.judged(judge.segment_file, path, segment)
        return f"segment, {mutation.__name__}", found


def _imported(paths: list[Path], format: str, rng: np.random.Generator) -> judge.Judged:
    """Import files, with or without knowing their format, and use the trace."""
    given = format if rng.random() < 0.7 else ""
    options = OPTIONS[int(rng.choice(3, p=[0.6, 0.2, 0.2]))]
    if format in ("megatron", "nccl-inspector") and options.k:
        options = ImportOptions()
    return judge.judged(_import_of, paths, given, options)


def _import_of(paths: list[Path], format: str, options: ImportOptions) -> str:
    """Import files into a trace, and ask of it what users ask."""
    _, merged = import_files(paths, format=format, options=options)
    judge.use(merged.trace)
    return "altered"


def _sampled(path: Path) -> str:
    """Load a model and sample from it."""
    model = TrafficModel.load(path)
    model.sample(iterations=2, seed=0)
    return "altered"


def _damaged(data: bytes, rng: np.random.Generator) -> tuple[bytes, str]:
    """Damage bytes or text."""
    mutations = (*PLAIN, *TEXT)
    mutation = mutations[int(rng.integers(len(mutations)))]
    return mutation(data, rng), mutation.__name__


# ---- text -----------------------------------------------------------------------


def extreme_number(data: bytes, rng: np.random.Generator) -> bytes:
    """A number that became an extreme one, or none."""
    starts = [i for i, c in enumerate(data) if chr(c).isdigit()] or [0]
    at = starts[int(rng.integers(len(starts)))]
    end = at
    while end < len(data) and chr(data[end]).isdigit():
        end += 1
    return data[:at] + EXTREMES[int(rng.integers(len(EXTREMES)))].encode() + data[end:]


def lost_line(data: bytes, rng: np.random.Generator) -> bytes:
    """A line that is missing."""
    lines = data.splitlines(keepends=True)
    del lines[int(rng.integers(len(lines)))]
    return b"".join(lines)


def repeated_line(data: bytes, rng: np.random.Generator) -> bytes:
    """A line that is there again, somewhere."""
    lines = data.splitlines(keepends=True)
    line = lines[int(rng.integers(len(lines)))]
    lines.insert(int(rng.integers(len(lines))), line * int(rng.choice([1, 2, 500])))
    return b"".join(lines)


def nested(data: bytes, rng: np.random.Generator) -> bytes:
    """Brackets within brackets, deeper than any stack."""
    at, deep = int(rng.integers(len(data))), int(rng.choice([3, 2000, 100_000]))
    bracket = (b"[", b"{", b"(", b'{"a":')[int(rng.integers(4))]
    return data[:at] + bracket * deep + data[at:]


def foreign_word(data: bytes, rng: np.random.Generator) -> bytes:
    """A word of another kind in place of some bytes."""
    words = (b"true", b"null", b'"', b"\n[info]\n", b"\x1b[31m", "\u202e".encode())
    at = int(rng.integers(len(data)))
    word = words[int(rng.integers(len(words)))]
    return data[:at] + word + data[at + int(rng.integers(5)) :]


TEXT = (extreme_number, lost_line, repeated_line, nested, foreign_word)
