"""End a merge at every call that reaches the disk, and check what is there then.

``python -m tests.trace.crashes FOLDER DEED [--force] [--parts N]`` repeats a merge in
forked children.  In the n-th repetition the deed happens at the n-th call that changes
the disk (open for writing, write, truncate, fsync, rename, unlink, rmdir): the process
kills itself, a write only half done (``kill``), or the disk is full from there on
(``full``).  n grows until the merge runs through.  The endings are printed as JSON.
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from moetraffic.errors import MoetrafficError
from moetraffic.trace import Trace
from moetraffic.trace.merge.merging import merge, merge_into
from tests.trace.conftest import make_trace
from tests.watch.logs import write_run

THROUGH, REFUSED, DEFECT = 0, 3, 4  # exit codes; refused: with a sentence
CHANGING = (
    *("write", "pwrite", "ftruncate", "fsync", "rename", "replace", "unlink", "remove"),
    *("rmdir", "mkdir"),
)
GROWING = ("write", "pwrite", "ftruncate", "fsync", "mkdir", "open")


class Disk:
    """Counts the calls that change the disk, and does its deed at one of them."""

    def __init__(self, deed: str, at: int) -> None:
        self._deed, self._left = deed, at

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


class Scene:
    """A merge onto a good trace, which ``force`` replaces."""

    def __init__(self, folder: Path, *, force: bool) -> None:
        self.force, self.stage, self.sound = force, folder / "stage", folder / "sound"
        self.logs, self.output = self.stage / "run.h5.logs", self.stage / "run.h5"
        for writer in write_run(self.sound / self.logs.name, 5):
            writer.close()
        merge(self.sound / self.logs.name).trace.save(self.sound / "new.h5")
        make_trace().save(self.sound / "old.h5")
        self.new = digest(self.sound / "new.h5")
        self.old = (self.sound / "old.h5").read_bytes()

    def prepare(self) -> None:
        shutil.rmtree(self.stage, ignore_errors=True)
        shutil.copytree(self.sound / self.logs.name, self.logs)
        self.output.write_bytes(self.old)

    def wrong(self, ended: str) -> str:
        """What must not be as it is, "" for nothing."""
        strays = [p.name for p in self.stage.iterdir() if p.name.startswith(".")]
        temporary = ended == "killed" and all(s.endswith(".tmp") for s in strays)
        if strays and not temporary:
            return f"left behind: {strays}"
        if self.output.read_bytes() == self.old:
            if ended == "through":
                return "it ended, and the output is the old one"
        elif not self.force or digest(self.output) != self.new:
            return "the output is another trace"
        elif not self.logs.exists():
            return ""
        for path in (self.sound / self.logs.name).iterdir():
            if path.read_bytes() != (self.logs / path.name).read_bytes():
                return f"{path.name} is another log"
        return ""


def digest(path: Path) -> str:
    """Digest of a trace, all of which can be read."""
    with Trace.open(path) as trace:
        for panel in trace.panels.values():
            panel.read(0, panel.shape[0])
        return trace.digest


def run(scene: Scene, deed: str, number: int) -> dict[str, Any]:
    """Run a scene until its n-th call."""
    scene.prepare()
    child = os.fork()
    if child == 0:
        code = DEFECT
        try:
            Disk(deed, number).install()
            merge_into(scene.logs, scene.output, force=scene.force)
            code = THROUGH
        except (MoetrafficError, OSError) as error:
            code = REFUSED if "\n" not in str(error) else DEFECT
        except BaseException:
            sys.stderr.write(traceback.format_exc())
        finally:
            os._exit(code)
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
    return {"ended": ended, "wrong": wrong}


def main() -> None:
    reader = argparse.ArgumentParser(description=__doc__)
    reader.add_argument("folder", type=Path)
    reader.add_argument("deed", choices=("kill", "full"))
    reader.add_argument("--force", action="store_true")
    reader.add_argument("--parts", type=int, default=1, help="try each N-th call")
    asked = reader.parse_args()
    scene = Scene(asked.folder, force=asked.force)
    last = "through" if asked.force else "refused"
    endings: list[dict[str, Any]] = []
    while not endings or endings[-1]["ended"] != last:
        endings.append(run(scene, asked.deed, 1 + len(endings) * asked.parts))
    print(json.dumps(endings))


if __name__ == "__main__":
    main()
