"""End a writer at every call that reaches the disk, and look at what is there then.

``python crashes.py FOLDER SCENE DEED [--part P --parts N]`` repeats a scene in forked
children.  In the n-th repetition the deed happens at the n-th call that changes the
disk (open for writing, write, truncate, fsync, rename, unlink, mkdir, rmdir): the
process kills itself, a write only half done (``kill``), or the disk is full from there
on (``full``).  n grows until the scene runs through.  A line of JSON each tells what
was found.
"""

from __future__ import annotations

import argparse
import errno
import io
import json
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from conftest import make_trace

from moetraffic import files as durable
from moetraffic.errors import MoetrafficError
from moetraffic.trace import PHASES, ROUTING, Group, Meta, Site, Trace
from moetraffic.trace.merge.merging import merge, merge_into
from moetraffic.trace.model import CLOCK, PLACEMENT
from moetraffic.trace.segments.segment import (
    EVENT,
    STEP,
    Segment,
    rank_folder,
    write_segment,
)

THROUGH, REFUSED = 0, 3  # exit codes: it ended, or said in a sentence why not
DEFECT = 4
CHANGING = (
    *("write", "pwrite", "ftruncate", "fsync", "rename", "replace", "unlink", "remove"),
    *("rmdir", "mkdir"),
)
GROWING = ("write", "pwrite", "ftruncate", "fsync", "mkdir", "open")


class Disk:
    """Counts the calls that change the disk, and does its deed at one of them."""

    def __init__(self, deed: str, at: int) -> None:
        self._deed = deed
        self._left = at

    def install(self) -> None:
        """Stand between this process and the system from here on."""
        for name in CHANGING:
            setattr(os, name, self._between(name, getattr(os, name)))
        really = os.open

        def opened(path: Any, flags: int, *more: Any, **named: Any) -> int:
            if flags & (os.O_CREAT | os.O_WRONLY | os.O_RDWR):
                self._reached("open", lambda: None)
            return really(path, flags, *more, **named)

        os.open = opened
        disk = self

        class Told(io.FileIO):
            def write(self, data: Any) -> int:
                raw = bytes(data)
                half = super().write
                disk._reached("write", lambda: half(raw[: len(raw) // 2]))
                return half(raw)

        def opened_file(path: Any, mode: str = "r") -> Any:
            if "w" not in mode:
                return open(path, mode)
            self._reached("open", lambda: None)
            return Told(path, "w")

        durable.open = opened_file

    def _between(self, name: str, really: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            def half() -> None:
                if name in ("write", "pwrite"):
                    data = bytes(arguments[1])
                    really(arguments[0], data[: len(data) // 2], *arguments[2:])

            self._reached(name, half)
            return really(*arguments, **named)

        return call

    def _reached(self, name: str, half: Callable[[], Any]) -> None:
        if self._deed == "full" and name not in GROWING:
            return
        self._left -= 1
        if self._left > 0:
            return
        if self._deed == "kill":
            half()
            os.kill(os.getpid(), signal.SIGKILL)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def segments() -> list[Segment]:
    """Two ranks, three windows each: a routing and its four exchanges a step."""
    row, window, windows = 32, 4, 3
    sites = [Site(group=0, operation=ROUTING, layer=1, experts=4)]
    sites += [
        Site(
            group=0,
            operation="all_to_all",
            phase=phase,
            layer=1,
            direction="backward" if "grad" in phase else "forward",
            dtype="float32",
            row_bytes=row,
        )
        for phase in PHASES
    ]
    made = []
    for rank, index in np.ndindex(2, windows):
        events = np.zeros(5 * window, EVENT)
        for name in {"link", "thread"} & set(EVENT.names or ()):
            events[name] = -1 if name == "link" else 0
        splits, demand = [], []
        for at in range(window):
            step = index * window + at
            counts = np.random.default_rng(step).integers(0, 9, (2, 4))
            between = counts.reshape(2, 2, 2).sum(axis=2) * row
            demand.append([counts[rank], np.zeros(4)])
            splits.append([between[rank], between[:, rank]])
            for place in range(5):
                event = events[5 * at + place]
                event["iteration"], event["site"] = step, place
                event["sequence"] = 4 * step + place - 1 if place else -1
                event["issue"] = 100 * step + place
                event["start"], event["end"] = event["issue"], event["issue"] + 1
                event["payload"], event["transposed"] = at, place in (2, 4)
        steps = np.zeros(window, STEP)
        steps["iteration"] = range(index * window, (index + 1) * window)
        steps["loss"], steps["tokens"] = 1.0, 16
        placements = np.zeros(4, PLACEMENT)
        placements["layer"], placements["expert"] = 1, range(4)
        placements["rank"] = [0, 0, 1, 1]
        made.append(
            Segment(
                rank=int(rank),
                index=int(index),
                final=bool(index == windows - 1),
                node="node",
                meta=Meta(world=2, ep=2, dp=2, experts=4, k=1, dispatch="dropless"),
                groups=(Group(kind="ep", ranks=(0, 1)),),
                sites=tuple(sites),
                events=events,
                steps=steps,
                kinds=("train",) * window,
                splits={2: np.array(splits, np.int64)},
                demand={4: np.array(demand, np.int32)},
                placements=placements,
                clocks=np.array([(rank, 10, 5, 2), (rank, 900, 6, 2)], CLOCK),
            )
        )
    return made


class Scene:
    """Something that writes, and what must hold however it ends."""

    last = "through"  # how it ends where it comes to its end

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.segments = folder / "run.h5.segments"
        self.output = folder / "run.h5"
        self.told = segments()
        self.digest = ""  # of the trace that the segments merge to

    def prepare(self) -> None:
        """The state before."""
        shutil.rmtree(self.folder, ignore_errors=True)
        sound = self.folder.with_name("sound")
        if not self.digest:
            self._make(sound / self.segments.name)
            merge(sound / self.segments.name).trace.save(sound / "new.h5", force=True)
            self.digest = _digest(sound / "new.h5")
            make_trace().save(sound / "old.h5", force=True)
        shutil.copytree(sound / self.segments.name, self.segments)

    def _make(self, there: Path) -> None:
        for segment in self.told:
            rank_folder(there, segment.rank).mkdir(parents=True, exist_ok=True)
            write_segment(segment, there)

    def run(self) -> None:
        """What is ended."""
        merge_into(self.segments, self.output, force=False)

    def wrong(self, ended: str) -> str:
        """What must not be as it is, "" for nothing."""
        strays = [p.name for p in self.folder.iterdir() if p.name.startswith(".")]
        if strays and (
            ended != "killed" or not all(s.endswith(".tmp") for s in strays)
        ):
            return f"left behind: {strays}"
        if self.output.exists():
            return self._output(ended)
        if ended == "through":
            return "it ended without an output"
        return self._segments_whole()

    def _output(self, ended: str) -> str:
        """The output is the new one; its segments are whole, or gone."""
        if _digest(self.output) != self.digest:
            return "the output is another trace"
        return self._segments_whole() if self.segments.exists() else ""

    def _segments_whole(self) -> str:
        """The segments are the bytes that they were, so they merge as they did."""
        sound = self.folder.with_name("sound") / self.segments.name
        for root in (sound, self.segments):
            for path in root.glob("rank-*/*"):
                name = path.relative_to(root)
                if (sound / name).read_bytes() != (self.segments / name).read_bytes():
                    return f"{name} is another segment"
        return ""


class Over(Scene):
    """A merge that may replace a good trace: one of both is always there."""

    def prepare(self) -> None:
        super().prepare()
        shutil.copy(self.folder.with_name("sound") / "old.h5", self.output)
        self.old = self.output.read_bytes()

    def run(self) -> None:
        merge_into(self.segments, self.output, force=True)

    def wrong(self, ended: str) -> str:
        if not self.output.exists():
            return "a good output was lost"
        if self.output.read_bytes() == self.old:
            if ended == "through":
                return "it ended, and the output is the old one"
            self.output.unlink()  # the rest is as if there had been none
        return super().wrong(ended)


class Beside(Over):
    """A merge that may not replace a good trace."""

    last = "refused"

    def run(self) -> None:
        merge_into(self.segments, self.output, force=False)

    def wrong(self, ended: str) -> str:
        if self.output.read_bytes() != self.old:
            return "a good output was changed without force"
        strays = [p.name for p in self.folder.iterdir() if p.name.startswith(".")]
        return f"left behind: {strays}" if strays else self._segments_whole()


class Commit(Scene):
    """The windows of a rank, one after another: each is whole, or not there."""

    def prepare(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        self._make(self.folder.with_name("sound") / self.segments.name)
        for segment in self.told:
            rank_folder(self.segments, segment.rank).mkdir(parents=True, exist_ok=True)
        write_segment(self.told[3], self.segments)  # the other rank's first

    def run(self) -> None:
        for segment in self.told[:3]:
            write_segment(segment, self.segments)
            with (self.folder / "committed").open("a") as note:
                note.write("x")

    def wrong(self, ended: str) -> str:
        note = self.folder / "committed"
        committed = len(note.read_text()) if note.exists() else 0
        own = rank_folder(self.segments, 0)
        there = sorted(own.glob("segment-*.h5"))
        strays = [p.name for p in own.iterdir() if p not in there]
        if strays and (
            ended != "killed" or not all(s.endswith(".tmp") for s in strays)
        ):
            return f"left behind: {strays}"
        if not committed <= len(there) <= committed + 1:
            return f"{committed} windows were committed, {len(there)} are there"
        sound = rank_folder(self.folder.with_name("sound") / self.segments.name, 0)
        for path in there:
            if path.read_bytes() != (sound / path.name).read_bytes():
                return f"{path.name} is another segment"
        merged = merge(self.segments)
        if merged.trace.steps.iteration[-1] != max(4, 4 * len(there)) - 1:
            return "the merge lost steps"
        return ""


SCENES = {"merge": Scene, "over": Over, "beside": Beside, "commit": Commit}


def _digest(path: Path) -> str:
    """Digest of a trace, all of which can be read."""
    with Trace.open(path) as trace:
        for panel in trace.panels.values():
            panel.read(0, panel.shape[0])
        return trace.digest


def repeated(scene: Scene, deed: str, numbers: Iterator[int]) -> Iterator[Any]:
    """Run a scene to its n-th call, for each n until it runs through."""
    for number in numbers:
        scene.prepare()
        child = os.fork()
        if child == 0:
            _end(scene, deed, number)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            ended = "killed" if os.WTERMSIG(status) == signal.SIGKILL else "crashed"
        else:
            code = os.waitstatus_to_exitcode(status)
            ended = {THROUGH: "through", REFUSED: "refused"}.get(code, "raised")
        try:
            wrong = scene.wrong(ended)
        except Exception:
            wrong = traceback.format_exc()[-600:]
        yield {"n": number, "ended": ended, "wrong": wrong}
        if ended == scene.last:
            return


def _end(scene: Scene, deed: str, number: int) -> None:
    code = DEFECT
    try:
        Disk(deed, number).install()
        scene.run()
        code = THROUGH
    except (MoetrafficError, OSError) as error:
        # a window's OSError is the caller's to tell
        code = REFUSED if "\n" not in str(error) else DEFECT
    except BaseException:
        sys.stderr.write(traceback.format_exc())
    finally:
        os._exit(code)


def main() -> None:
    reader = argparse.ArgumentParser(description=__doc__)
    reader.add_argument("folder", type=Path)
    reader.add_argument("scene", choices=SCENES)
    reader.add_argument("deed", choices=("kill", "full"))
    reader.add_argument("--part", type=int, default=0)
    reader.add_argument("--parts", type=int, default=1)
    asked = reader.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    scene = SCENES[asked.scene](asked.folder / "stage")
    numbers = iter(range(1 + asked.part, 100_000, asked.parts))
    with (asked.folder / "endings.jsonl").open("w") as out:
        for ending in repeated(scene, asked.deed, numbers):
            out.write(json.dumps(ending) + "\n")
            out.flush()


if __name__ == "__main__":
    main()
