"""Recorders that run in this process: pause and resume them, detach forked children."""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Running(Protocol):
    """Recorder that runs: see :class:`.recorder.Recorder`."""

    def pause(self) -> None:
        """Record no iteration that begins later."""

    def resume(self) -> None:
        """Record iterations that begin later."""

    def abandon(self) -> None:
        """Stop recording in a forked child."""


running: weakref.WeakSet[Running] = weakref.WeakSet()
"""Recorders between their start and their end."""


def pause() -> None:
    """Record no iteration that begins later, see :meth:`Recorder.pause`.

    Also where ``moetraffic run`` records; has no effect outside a capture.
    """
    for recorder in list(running):
        recorder.pause()


def resume() -> None:
    """Record iterations that begin later, after :func:`pause`."""
    for recorder in list(running):
        recorder.resume()


def _forget() -> None:
    """Abandon running recorders in a forked child."""
    for recorder in list(running):
        recorder.abandon()


os.register_at_fork(after_in_child=_forget)
