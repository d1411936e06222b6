"""Read thousands of damaged files, each under a limit of memory and of time.

``python campaign.py FOLDER --first 0 --files 1000`` writes a line of JSON for each file
to ``FOLDER/verdicts.jsonl``; ``--foreign`` reads files of other tools,
models and segments instead.  A file is made from its number alone.  Two processes
read; one that is killed, or late, is replaced, and the file it read gets the verdict.
"""

from __future__ import annotations

import argparse
import importlib
import json
import multiprocessing
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import judge
import numpy as np
from conftest import make_trace
from mutations import FORGED, PLAIN, metadata
from rewrites import REWRITES, reseal, rewritten, segments, wide_trace

from moetraffic.data import path as data_path
from moetraffic.trace import Trace
from moetraffic.trace.merge.merging import merge
from moetraffic.trace.segments.segment import rank_folder, read_segment, write_segment

DEADLINE_S = 200.0  # after which reading one file is a hang, on a busy machine too
WORKERS = 2


class Bases:
    """The sound files that are damaged, and what they say."""

    def __init__(self, folder: Path) -> None:
        self.traces: list[tuple[bytes, Trace]] = []
        for name, trace in (("small", make_trace()), ("wide", wide_trace())):
            trace.save(folder / f"{name}.h5", force=True)
            self.traces.append(_read(folder / f"{name}.h5"))
        self.traces.insert(1, _read(Path(str(data_path("golden-v1.h5")))))
        self.folder = folder / "run.h5.segments"
        for segment in segments():
            rank_folder(self.folder, segment.rank).mkdir(parents=True, exist_ok=True)
            write_segment(segment, self.folder)
        self.victim = rank_folder(self.folder, 1) / "segment-000001.h5"
        self.segment = (self.victim.read_bytes(), read_segment(self.victim))
        whole = merge(self.folder).trace
        self.victim.unlink()
        self.merged = {"whole": whole, "without": merge(self.folder).trace}
        self.victim.write_bytes(self.segment[0])
        for data in (*(d for d, _ in self.traces), self.segment[0]):
            metadata(data)  # kept by it

    def move(self, folder: Path) -> None:
        """Damage segments in a folder of a process's own."""
        shutil.copytree(self.folder, folder / self.folder.name)
        self.victim = folder / self.victim.relative_to(self.folder.parent)
        self.folder = folder / self.folder.name


def _read(path: Path) -> tuple[bytes, Trace]:
    trace = Trace.open(path)
    return path.read_bytes(), trace


def mutated(number: int, bases: Bases, folder: Path) -> tuple[str, judge.Judged]:
    """Make file ``number`` and read it; what was done to it, and how it went."""
    rng = np.random.default_rng([20, number])
    which = int(rng.choice(5, p=[0.4, 0.2, 0.05, 0.25, 0.1]))
    draw = rng.random()
    if which < 3:
        data, truth = bases.traces[which]
        path = folder / "mutated.h5"
        told = ("trace", "golden", "wide")[which]
        if draw < 0.2:
            return _rewrite(data, path, truth, rng, told)
        chosen = FORGED if draw < 0.5 else PLAIN
        mutation = chosen[int(rng.integers(len(chosen)))]
        path.write_bytes(mutation(data, rng))
        told += f", {mutation.__name__}"
        return told, judge.judged(judge.trace_file, path, truth)
    data, segment = bases.segment
    chosen = FORGED if draw < 0.35 else PLAIN
    mutation = chosen[int(rng.integers(len(chosen)))]
    bases.victim.write_bytes(mutation(data, rng))
    if which == 3:
        told = f"segment, {mutation.__name__}"
        return told, judge.judged(judge.segment_file, bases.victim, segment)
    told = f"merge, {mutation.__name__}"
    return told, judge.judged(judge.segment_folder, bases.folder, bases.merged)


def _rewrite(
    data: bytes, path: Path, truth: Trace, rng: np.random.Generator, told: str
) -> tuple[str, judge.Judged]:
    """Rewrite something by means of HDF5; with new checksums, or without."""
    change = REWRITES[int(rng.integers(len(REWRITES)))]
    path.write_bytes(data)
    sealed = bool(rng.random() < 0.5)
    try:
        rewritten(path, lambda file: change(file, rng))
        if sealed:
            reseal(path)
    except (OSError, TypeError, ValueError):
        path.write_bytes(data)  # HDF5 would not do it
    told += f", {change.__name__}{', resealed' if sealed else ''}"
    found = judge.judged(judge.trace_file, path, truth)
    if sealed and found.outcome == "altered":
        # somebody wrote another trace, which is no damage
        found = replace(found, outcome="another trace")
    return told, found


# ---- processes --------------------------------------------------------------------


def _worker(pipe: Connection, folder: Path, bases: Any) -> None:
    folder.mkdir(parents=True)
    bases.move(folder)
    pipe.send("ready")
    while (number := pipe.recv()) is not None:
        if not isinstance(bases, Bases):
            told, found = bases.judged(number, folder)
        else:
            told, found = mutated(number, bases, folder)
        pipe.send({"what": told, **asdict(found)})
    os._exit(0)


def campaign(
    numbers: Iterator[int], folder: Path, make: Callable[[Path], Any]
) -> Iterator[dict[str, Any]]:
    """A verdict for each number; ``make`` makes the sound files."""
    fork = multiprocessing.get_context("fork")
    busy: dict[Connection, tuple[Any, int | None, float]] = {}
    made = 0
    # made before the processes, which share them
    folder.joinpath("bases").mkdir(parents=True)
    bases = make(folder / "bases")

    def start() -> None:
        nonlocal made
        ours, its = fork.Pipe()
        made += 1
        child = fork.Process(
            target=_worker, args=(its, folder / f"worker-{made}", bases), daemon=True
        )
        child.start()
        its.close()
        busy[ours] = (child, None, time.monotonic())

    for _ in range(WORKERS):
        start()
    while busy:
        ready = wait(list(busy), timeout=1.0)
        for pipe, (child, number, since) in list(busy.items()):
            if pipe in ready:
                try:
                    said = pipe.recv()
                except EOFError:
                    child.join()
                    del busy[pipe]
                    if number is None:
                        continue
                    code = -child.exitcode
                    name = signal.Signals(code).name if code > 1 else "exception"
                    yield {"number": number, "outcome": "crash", "said": name}
                    start()
                    continue
                if said != "ready":
                    took = time.monotonic() - since
                    yield {"number": number, **said, "seconds": round(took, 3)}
                following = next(numbers, None)
                pipe.send(following)
                busy[pipe] = (child, following, time.monotonic())
                if following is None:
                    child.join()
                    del busy[pipe]
            elif time.monotonic() - since > DEADLINE_S and number is not None:
                child.kill()
                child.join()
                del busy[pipe]
                yield {"number": number, "outcome": "hang", "said": ""}
                start()


def main() -> None:
    reader = argparse.ArgumentParser(description=__doc__)
    reader.add_argument("folder", type=Path)
    reader.add_argument("--first", type=int, default=0)
    reader.add_argument("--files", type=int, default=1000)
    reader.add_argument("--foreign", action="store_true")
    reader.add_argument("--labeled", action="store_true", help="ask xarray too")
    asked = reader.parse_args()
    if asked.labeled:
        importlib.import_module("xarray")
    asked.folder.mkdir(parents=True, exist_ok=True)
    numbers = range(asked.first, asked.first + asked.files)
    make: Any = Bases
    if asked.foreign:
        sys.path.append(str(Path(__file__).parents[1] / "interop"))
        make = importlib.import_module("foreign_files").ForeignFiles
    with (asked.folder / "verdicts.jsonl").open("w") as out:
        for verdict in campaign(iter(numbers), asked.folder, make):
            out.write(json.dumps(verdict) + "\n")
            out.flush()


if __name__ == "__main__":
    main()
