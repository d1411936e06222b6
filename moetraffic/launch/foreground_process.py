"""Run a command in the foreground, with its streams, signals and exit code.

The command shares this process's group and terminal.  What the terminal sends (Ctrl-C)
reaches it by itself; what another process sends to this one is passed on.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

PASSED_ON = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
TYPED = (signal.SIGINT, signal.SIGQUIT)  # what a terminal sends to all of its group
NOT_FOUND, NOT_EXECUTABLE = 127, 126  # as a shell has them
LOOK_EVERY_S = 1.0


def run(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a command until it exits.

    Parameters
    ----------
    command
        Program and arguments.
    environment
        All of its variables.

    Returns
    -------
    int
        Its exit code; 128 + n after signal n.

    Raises
    ------
    OSError
        If it cannot be started.
    """
    early: list[int] = []
    # handlers, and not SIG_IGN, which the command would inherit; what this process
    # was started to ignore (nohup), the command ignores as well
    before = {
        number: signal.signal(number, lambda n, _: early.append(n))
        for number in PASSED_ON
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    awaited = {signal.SIGCHLD, *before}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        # descriptors above 2 are the command's as well, where a shell opened them
        process = subprocess.Popen(command, env=dict(environment), close_fds=False)
        signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
        while process.poll() is None:
            # before this thread waited, or while it did something else, a signal was
            # taken by a handler, which is not told who sent it: nobody types SIGTERM
            while early:
                number = early.pop(0)
                if number not in TYPED:
                    process.send_signal(number)
            told = _wait(awaited)
            if told is not None and told[0] != signal.SIGCHLD and told[1]:
                process.send_signal(told[0])
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
    code = process.returncode
    return code if code >= 0 else 128 - code


def _wait(awaited: set[signal.Signals]) -> tuple[int, bool] | None:
    """Wait for a signal; return it and whether a process sent it, None on timeout."""
    look: Any = getattr(signal, "sigtimedwait", None)
    if look is None:  # a system that does not tell who sent it: nobody types SIGTERM
        number = signal.sigwait(awaited)
        return number, number not in TYPED
    info = look(awaited, LOOK_EVERY_S)
    # the kernel's own, which a terminal causes, have a positive code
    return None if info is None else (info.si_signo, info.si_code <= 0)
