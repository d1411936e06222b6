"""Recorder that ``moetraffic run`` attaches to an unmodified program.

The start-up hook (``startup/moetraffic_startup.py``) calls :func:`begin` after the
creation of the default process group and :func:`end` before its destruction.  Because a
program may not destroy the group, the recorder is also closed at interpreter exit and
at the end of a multiprocessing child.  A rank that a signal ends leaves the records in
its log.  A forked child detaches from its parent's recorder.  If the program starts a
:class:`~moetraffic.capture.Recorder` of its own, the attached recorder stops.

No exception reaches the program, and logs are not merged here: the launcher merges them
when the command has ended.
"""

from __future__ import annotations

import atexit
import itertools
import multiprocessing.util
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import torch.distributed as dist

from moetraffic.errors import CaptureError, MoetrafficError
from moetraffic.trace.merge.log_folder import discard, join, log_folder

from .hook import calls as hook
from .recorder import Recorder
from .shared_store import SharedStore
from .validation import cause

STEPS_BACK = "the program's own Recorder writes {}, so moetraffic run records nothing"
Say = Callable[[str, str], None]  # kind of a message, and its text
Note = Callable[[str], object]  # kind of a note for the launcher
_numbers = itertools.count()
_lock = threading.RLock()
_attached: Attachment | None = None


class Attachment:
    """Running recorder of an unmodified program."""

    def __init__(self, recorder: Recorder, say: Say, note: Note) -> None:
        self.recorder, self.say, self.note = recorder, say, note
        self.rank = dist.get_rank()
        # multiprocessing children exit without running atexit handlers
        self.finalizer = multiprocessing.util.Finalize(
            None, _end_of_process, exitpriority=0
        )
        hook.set_attached_recorder(step_back)

    def close(self, why: str) -> None:
        """Close the recorder; ``why`` is the reason of an early end, "" for none."""
        try:
            if why:
                self.recorder.end_early(why)
            self.recorder.close(merged=False)
            if self.recorder.warnings:
                self.note("lost")  # the reason, if nothing was recorded
        finally:
            self.withdraw()

    def withdraw(self) -> None:
        """Detach this process from the recorder (also a forked child)."""
        hook.set_attached_recorder(None)
        self.finalizer.cancel()


def begin(*, say: Say, note: Note) -> None:
    """Start recording the new default process group, without raising exceptions.

    Environment variables have the output and the arguments of the recorder.  ``say``
    prints a message once per host, and ``note`` leaves a note for the launcher.
    """
    global _attached
    with _lock:
        end()  # of a group that was not destroyed
        try:
            if dist.get_backend() == "fake":
                return  # nothing is sent
            if hook.installed():
                say("own", STEPS_BACK.format("its trace"))
                return
            if (recorder := _recorder(say)) is None:
                return  # rank 0 reports the reason
            recorder.start()
            _attached = Attachment(recorder, say, note)
            note("begun")
        except Exception as error:
            # no error of the capture may stop the training
            _report(say, error)


def end(error: BaseException | None = None) -> None:
    """Close the attached recorder, if any, without raising exceptions.

    ``error`` is the exception that ends the program.
    """
    global _attached
    with _lock:
        attached, _attached = _attached, None
        if attached is not None:
            try:
                attached.close(_early(error))
            except Exception as failure:
                _report(attached.say, failure)


def step_back(path: Path) -> None:
    """Stop and delete this recording in favor of the program's own, to ``path``."""
    with _lock:
        attached = _attached
        if attached is None:
            return
        end()
        discard(log_folder(attached.recorder.path), attached.rank)
    attached.say("own", STEPS_BACK.format(path))


def _recorder(say: Say) -> Recorder | None:
    """Create a recorder of the trace that rank 0 reserves; None if it cannot."""
    path, force = Path(_variable("OUT")), _variable("OUT_FORCE") == "1"

    def reserve() -> str:
        try:
            return join(path, force=force).name
        except CaptureError as error:
            _report(say, error)
            return ""

    # without an answer, rank 0 is not captured, but this rank is
    store = SharedStore(f"attached/{next(_numbers)}")
    name = store.ask_rank_0("trace", reserve, otherwise=path.name)
    if not name:
        return None
    # the folder may be local to this host, and then has no list of captures yet
    out = join(path, name)
    return Recorder(
        out,
        model=_variable("MODEL"),
        router=_variable("ROUTER"),
        k=int(_variable("K") or 0) or None,
        every=int(_variable("EVERY") or 1),
        most_bytes=int(_variable("MAX_SIZE") or 0) or None,
        token_sample=int(_variable("TOKEN_SAMPLE") or 0),
        force=force and out == path,
    )


def _variable(name: str) -> str:
    """Return a variable of the start-up hook, "" if it is not set."""
    return os.environ.get(f"MOETRAFFIC_{name}", "")


def _early(error: BaseException | None) -> str:
    """Describe the exception that ended a program; "" for a normal exit."""
    if isinstance(error, SystemExit):
        if error.code in (0, None):
            return ""
        # torch.multiprocessing reports a child's exception, and exits with 1
        if error.__context__ is not None:
            return cause(error.__context__)
        return f"ended by exit({error.code!r})"[:200]
    return "" if error is None else cause(error)


def _report(say: Say, error: Exception) -> None:
    text = str(error) if isinstance(error, MoetrafficError) else repr(error)
    say("refused", f"this run is not captured: {' '.join(text.split())}")


@atexit.register
def _end_of_process() -> None:
    """Close the recorder at interpreter exit, or in a multiprocessing child."""
    end(sys.exc_info()[1] or getattr(sys, "last_value", None))


def _forked() -> None:
    """Detach a forked child from its parent's recorder."""
    global _attached, _lock
    _lock = threading.RLock()  # another thread of the parent may hold the lock
    attached, _attached = _attached, None
    if attached is not None:
        attached.withdraw()


os.register_at_fork(after_in_child=_forked)
