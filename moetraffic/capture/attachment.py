"""Recorder that ``moetraffic run`` attaches to an unmodified program.

The start-up hook (``startup/sitecustomize.py``) calls :func:`begin` once a process
group is there and :func:`end` before it goes.  A program may never come to that: so the
record is also closed when the interpreter exits, when a multiprocessing child ends and
when SIGTERM comes.  A forked child lets go of its parent's record.  Where the program
has a :class:`~moetraffic.capture.Recorder` of its own, this one steps back.

Nothing here raises into the program, and nothing is merged: the launcher does that
when the command has ended.
"""

from __future__ import annotations

import atexit
import itertools
import multiprocessing.util
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

from moetraffic.errors import CaptureError, MoetrafficError
from moetraffic.trace.segments.segment import rank_folder
from moetraffic.trace.segments.series import join
from moetraffic.trace.segments.store import segments_folder

from .hook import python as hook
from .input_validation import cause
from .recorder import Recorder
from .sigterm import SigtermListener

PATIENCE = timedelta(seconds=30)
"""How long a rank waits for rank 0 to publish the capture's output."""

Say = Callable[[str, str], None]
_times = itertools.count()
_ending = threading.RLock()
_attached: Attachment | None = None
_mask = threading.local()  # of signals, before a fork


class Attachment:
    """A running recorder and its termination handlers.

    Parameters
    ----------
    recorder
        Has been started.
    say
        Tells the user a thing once a host: a word for its kind, and a sentence.
    """

    def __init__(self, recorder: Recorder, say: Say) -> None:
        self.recorder, self.say = recorder, say
        self.pid = os.getpid()
        self.rank = dist.get_rank()
        self.listener = SigtermListener(lambda: end(why="interrupted by SIGTERM"))
        self.listener.start()
        # processes of multiprocessing end without atexit
        self.finalizer = multiprocessing.util.Finalize(
            None, _end_of_process, exitpriority=0
        )
        hook.set_attached_recorder(self.step_back)

    def close(self, why: str) -> None:
        """Close the recorder and write its remaining data."""
        if threading.current_thread() is threading.main_thread():
            self.listener.holds = False  # the end must not wait for itself
        try:
            if why:
                self.recorder.end_early(why)
            self.recorder.close(merged=False)
        finally:
            self._withdraw()

    def step_back(self) -> None:
        """Stop recording in favor of a recorder of the program."""
        global _attached
        with _ending:
            if _attached is not self:
                return
            _attached = None
            try:
                self.close("")
                folder = segments_folder(self.recorder.path)
                shutil.rmtree(rank_folder(folder, self.rank), ignore_errors=True)
            except Exception as error:
                _tell(self.say, error)
        _step_back(self.say)

    def abandon(self) -> None:
        """Detach a forked child from its parent's recorder."""
        self._withdraw()

    def _withdraw(self) -> None:
        hook.set_attached_recorder(None)
        self.listener.stop()
        self.finalizer.cancel()


def begin(
    path: str,
    *,
    force: bool,
    model: str,
    router: str,
    k: str,
    say: Say,
    note: Callable[[str], object],
) -> None:
    """Start to record the new default process group; never raises.

    Parameters
    ----------
    path
        The trace that was asked for.
    force
        It may be replaced.
    model, router, k
        What the user calls them, as text; empty where not told.
    say, note
        The hook's: tell the user once a host; leave a word for the launcher.
    """
    global _attached
    with _ending:
        end()  # of a group that was not destroyed in the usual way
        try:
            if dist.get_backend() == "fake":
                return  # nothing is sent
            if hook.installed():
                _step_back(say)
                return
            out = _agree(Path(path), force=force)
            if out is None:
                return  # rank 0 says why
            recorder = Recorder(
                out,
                model=model,
                router=router,
                k=int(k or 0),
                force=force and out == Path(path),
            )
            recorder.start()
            _attached = Attachment(recorder, say)
        except Exception as error:
            # whatever it is, the training has its own work to do
            _tell(say, error)
            return
    note("begun")


def end(error: BaseException | None = None, *, why: str = "") -> None:
    """Close the recorder, if there is one; never raises.

    Parameters
    ----------
    error
        What is ending the program, if anything is.
    why
        The same in words, as :meth:`Recorder.end_early` wants them.
    """
    global _attached
    with _ending:
        attached, _attached = _attached, None
        if attached is None or attached.pid != os.getpid():
            return
        try:
            attached.close(why or _early(error))
        except Exception as failure:
            _tell(attached.say, failure)


def _early(error: BaseException | None) -> str:
    """Describe the cause of an early end; "" for a normal exit."""
    if isinstance(error, SystemExit):
        if error.code in (0, None):
            return ""
        # torch.multiprocessing reports a child's exception, and exits with 1
        if error.__context__ is not None:
            return cause(error.__context__)
        return f"ended by exit({error.code!r})"[:200]
    return "" if error is None else cause(error)


def _end_of_process() -> None:
    """Close the recorder at interpreter exit, or in a multiprocessing child."""
    end(sys.exc_info()[1] or getattr(sys, "last_value", None))


def _agree(path: Path, *, force: bool) -> Path | None:
    """Agree with all ranks on the output; None if rank 0 refuses it.

    Raises
    ------
    CaptureError
        On rank 0, if the folder cannot be written.
    """
    number = next(_times)
    rank, store = dist.get_rank(), None
    if dist.get_world_size() > 1:
        store = dist.distributed_c10d._get_default_store()
    # an agent's store may outlive the ranks that it restarts
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    key = f"moetraffic/attached/{attempt}/{number}"
    if store is None:
        return join(path, force=force)
    if rank == 0:
        try:
            chosen = join(path, force=force)
        except CaptureError:
            store.set(key, "")
            raise
        store.set(key, chosen.name)
        return chosen
    try:
        store.wait([key], PATIENCE)
        name = store.get(key).decode()
    except RuntimeError:
        name = path.name  # rank 0 is not captured: the others are
    # a folder of this host's own has no list yet
    return join(path, name) if name else None


def _step_back(say: Say) -> None:
    say(
        "own",
        "the program records by itself, so moetraffic run steps back and leaves the "
        "capture to it",
    )


def _tell(say: Say, error: Exception) -> None:
    told = str(error) if isinstance(error, MoetrafficError) else repr(error)
    say("refused", f"this run is not captured: {' '.join(told.split())}")


def _before_fork() -> None:
    """Block SIGTERM during a fork.

    Until it has let go of what is the parent's, the signal would wake the parent's
    listener: a data loader that is ended early would end the training.
    """
    _mask.earlier = None
    if _attached is not None:
        _mask.earlier = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _after_fork() -> None:
    """Unblock SIGTERM in the parent after a fork."""
    if _mask.earlier is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, _mask.earlier)


def _forked() -> None:
    """Detach a forked child from its parent's recorder."""
    global _attached, _ending
    _ending = threading.RLock()  # another thread of the parent may have held it
    attached, _attached = _attached, None
    if attached is not None:
        attached.abandon()
    _after_fork()


atexit.register(_end_of_process)
os.register_at_fork(
    before=_before_fork, after_in_parent=_after_fork, after_in_child=_forked
)
