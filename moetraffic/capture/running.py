"""The recorder that runs in this process: one at a time.

A forked child detaches from it.  It is closed before ``os._exit``, which runs no
handler of the interpreter, unless the program has imported ``_exit`` by name before.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .recorder import Recorder

EXIT_S = 10.0
"""Maximum duration of closing at exit: another thread may hold what it needs."""


recorder: Recorder | None = None


def started(new: Recorder) -> Callable[[], None]:
    """Set the recorder that runs; return the function that notes its end."""
    global recorder
    recorder, original = new, os._exit

    def close_and_exit(status: int) -> None:
        if recorder is new:
            closing = threading.Thread(target=new.exiting, args=(status,), daemon=True)
            closing.start()
            closing.join(EXIT_S)
        original(status)

    def ended() -> None:
        global recorder
        recorder = None
        if os._exit is exit_:
            os._exit = original

    exit_: Any = close_and_exit
    os._exit = exit_
    return ended


def pause() -> None:
    """Record no iteration that begins later, see :meth:`Recorder.pause`.

    Also where ``moetraffic run`` records; has no effect outside a capture.
    """
    if recorder is not None:
        recorder.pause()


def resume() -> None:
    """Record iterations that begin later, after :func:`pause`."""
    if recorder is not None:
        recorder.resume()


def _forked() -> None:
    if recorder is not None:
        recorder.abandon()


os.register_at_fork(after_in_child=_forked)
