"""Recorder that ``moetraffic run`` attaches to an unmodified program.

The start-up hook (``startup/moetraffic_startup.py``) calls :func:`begin` after the
creation of the default process group and :func:`end` before its destruction.  Because a
program may not destroy the group, the recorder is also closed at interpreter exit and
at the end of a multiprocessing child.  If the program starts a
:class:`~moetraffic.capture.Recorder` of its own, the attached recorder stops.

No exception reaches the program.  The launcher merges the logs.
"""

from __future__ import annotations

import atexit
import itertools
import multiprocessing.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist

from moetraffic.errors import CaptureError, MoetrafficError
from moetraffic.trace.merge.log_folder import discard, join, log_folder

from . import running
from .recorder import Recorder
from .shared_store import SharedStore
from .validation import cause

OWN = "the program's own Recorder writes {}, so moetraffic run records nothing"
Say = Callable[[str, str], None]  # kind of a message, and its text
Note = Callable[[str], object]  # kind of a note for the launcher
_numbers = itertools.count()
_attached: AttachedRecorder | None = None


class AttachedRecorder(Recorder):
    """Recorder of an unmodified program."""

    def __init__(self, path: Path, say: Say, note: Note, **options: Any) -> None:
        super().__init__(path, **options)
        self.say, self.note = say, note

    def start(self) -> Recorder:
        """Start recording; close at the end of a multiprocessing child, too."""
        super().start()
        # which exits without running atexit handlers
        self._finalizer = multiprocessing.util.Finalize(
            None, _end_of_process, exitpriority=0
        )
        return self

    def give_way(self, path: Path) -> None:
        """Stop, and delete this recording in favor of the program's own."""
        end()
        discard(log_folder(self.path), self._rank)
        self.say("own", OWN.format(path))

    def abandon(self) -> None:
        """Detach a forked child."""
        global _attached
        _attached = None
        self._finalizer.cancel()
        super().abandon()

    def close_alone(self, why: str) -> None:
        """Close, and note for the launcher whether records are missing."""
        try:
            self.close(merged=False)
            if self.warnings:
                self.note("lost")  # the reason, if nothing was recorded
        finally:
            self._finalizer.cancel()


def begin(*, say: Say, note: Note) -> None:
    """Start recording the new default process group, without raising exceptions.

    Environment variables have the output and the arguments of the recorder.  ``say``
    prints a message once per host, and ``note`` leaves a note for the launcher.
    """
    global _attached
    end()  # of a group that was not destroyed
    try:
        if dist.get_backend() == "fake":
            return  # nothing is sent
        if running.recorder is not None:
            say("own", OWN.format("its trace"))
            return
        if (recorder := _recorder(say, note)) is None:
            return  # rank 0 reports the reason
        recorder.start()
        _attached = recorder
        note("begun")
    except Exception as error:
        # no error of the capture may stop the training
        _report(say, error)


def end(error: BaseException | None = None) -> None:
    """Close the attached recorder, if any, without raising exceptions.

    ``error`` is the exception that ends the program.
    """
    global _attached
    attached, _attached = _attached, None
    if attached is not None:
        try:
            if why := _early(error):
                attached.end_early(why)
            attached.close_alone(why)
        except Exception as failure:
            _report(attached.say, failure)


def _recorder(say: Say, note: Note) -> AttachedRecorder | None:
    """Create a recorder of the trace that rank 0 reserves; None if it cannot."""
    given = {
        name.removeprefix("MOETRAFFIC_"): value for name, value in os.environ.items()
    }
    path, force = Path(given["OUT"]), given.get("OUT_FORCE") == "1"

    def reserve() -> str:
        try:
            return join(path, force=force).name
        except CaptureError as error:
            _report(say, error)
            return ""

    # without an answer, rank 0 is not captured, but this rank is
    store = SharedStore(f"attached/{next(_numbers)}")
    name = store.ask_rank_0("trace", reserve, path.name)
    if not name:
        return None
    # the folder may be local to this host, and then has no list of captures yet
    out = join(path, name)
    return AttachedRecorder(
        *(out, say, note),
        model=given.get("MODEL", ""),
        router=given.get("ROUTER", ""),
        k=int(given.get("K") or 0) or None,
        every=int(given.get("EVERY") or 1),
        most_bytes=int(given.get("MAX_SIZE") or 0) or None,
        token_sample=int(given.get("TOKEN_SAMPLE") or 0),
        force=force and out == path,
    )


def _early(error: BaseException | None) -> str:
    """Describe the exception that ended a program; "" for a normal exit."""
    if isinstance(error, SystemExit) and error.__context__ is not None:
        # torch.multiprocessing reports a child's exception, and exits with 1
        error = error.__context__ if error.code else None
    if isinstance(error, SystemExit):
        return f"ended by exit({error.code!r})"[:200] if error.code else ""
    return "" if error is None else cause(error)


def _report(say: Say, error: Exception) -> None:
    text = str(error) if isinstance(error, MoetrafficError) else repr(error)
    say("refused", f"this run is not captured: {' '.join(text.split())}")


@atexit.register
def _end_of_process() -> None:
    """Close the recorder at interpreter exit, or in a multiprocessing child."""
    end(sys.exc_info()[1] or getattr(sys, "last_value", None))
