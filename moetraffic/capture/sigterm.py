"""Close the recorder on SIGTERM even if the main thread is blocked in a collective.

Python runs signal handlers between two instructions of the main thread, which a rank
blocked inside a collective does not reach; without a handler, the signal ends the
process at once.  A separate thread therefore reads the signal from the interpreter's
wake-up descriptor, closes the recorder, and then ends the process by the default action
of the signal.

This is transparent to programs.  If the program has a handler of its own, that handler
is kept and no listener is installed; a program that queries or sets the handler sees
the default action.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

PATIENCE_S = 10.0
"""Maximum duration of closing; launchers send SIGKILL about 30 s after SIGTERM."""


class SigtermListener:
    """Listener that calls a function on SIGTERM and then ends the process by it.

    ``closing`` is called in a thread; the process ends after at most 10 s.
    """

    def __init__(self, closing: Callable[[], None]) -> None:
        self._closing = closing
        self._pid = os.getpid()
        self._pipe: tuple[int, int] | None = None
        self._own_wakeup = False
        self.holds = True
        """Whether the main thread blocks in the signal handler: otherwise it would fail
        because its peers have ended.  False while the main thread closes the recorder.
        """
        self._seen: tuple[Any, Any] = (signal.signal, signal.getsignal)

    def start(self) -> bool:
        """Start listening for SIGTERM; return False if the program has its own handler.

        Only effective in the main thread.
        """
        if threading.current_thread() is not threading.main_thread():
            return False
        if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
            return False
        reader, writer = self._pipe = os.pipe()
        os.set_blocking(writer, False)
        earlier = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        self._own_wakeup = earlier == -1
        if not self._own_wakeup:
            signal.set_wakeup_fd(earlier)  # used by an event loop: rely on the handler
        signal.signal(signal.SIGTERM, self._handle)
        self._hide()
        threading.Thread(
            target=self._listen, args=(reader,), name="moetraffic-sigterm", daemon=True
        ).start()
        return True

    def stop(self) -> None:
        """Stop listening for SIGTERM; only effective in the main thread."""
        if self._pipe is None or (
            threading.current_thread() is not threading.main_thread()
        ):
            return
        pipe, self._pipe = self._pipe, None
        set_signal, get_signal = self._seen
        signal.signal, signal.getsignal = set_signal, get_signal
        if get_signal(signal.SIGTERM) == self._handle:
            set_signal(signal.SIGTERM, signal.SIG_DFL)
        if self._own_wakeup:
            current = signal.set_wakeup_fd(-1)
            if current not in (-1, pipe[1]):
                signal.set_wakeup_fd(current)
        os.close(pipe[1])  # ends the listening thread
        if os.getpid() != self._pid:
            os.close(pipe[0])  # a forked child has no listening thread

    # ---- inside ----------------------------------------------------------------

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self._pipe is not None and not self._own_wakeup:
            os.write(self._pipe[1], bytes([number]))
        deadline = time.monotonic() + 2 * PATIENCE_S
        while self.holds and time.monotonic() < deadline:
            time.sleep(0.05)

    def _hide(self) -> None:
        """Report the default action to programs that query the SIGTERM handler."""
        set_signal, get_signal = self._seen

        def shown(handler: Any) -> Any:
            return signal.SIG_DFL if handler == self._handle else handler

        def signal_(signalnum: int, handler: Any) -> Any:
            if signalnum == signal.SIGTERM and handler == signal.SIG_DFL:
                handler = self._handle
            return shown(set_signal(signalnum, handler))

        def getsignal(signalnum: int) -> Any:
            return shown(get_signal(signalnum))

        signal_.__name__ = "signal"
        signal.signal, signal.getsignal = signal_, getsignal

    def _listen(self, reader: int) -> None:
        while numbers := os.read(reader, 64):
            # the descriptor also receives SIGINT and other signals with a handler, and
            # SIGTERM after the program has set a handler of its own
            handler: Any = self._seen[1](signal.SIGTERM)
            ours = self._pipe is not None and handler == self._handle
            if signal.SIGTERM in numbers and ours:
                closing = threading.Thread(target=self._closing, daemon=True)
                closing.start()
                closing.join(PATIENCE_S)
                die_of(signal.SIGTERM)
        os.close(reader)


def die_of(number: int) -> None:
    """End this process by a signal's default action, from any thread."""
    libc = ctypes.CDLL(None)
    libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
    libc.signal.restype = ctypes.c_void_p
    libc.signal(number, None)  # SIG_DFL; Python requires the main thread
    os.kill(os.getpid(), number)
