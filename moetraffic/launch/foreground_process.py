"""Run a command in the foreground, with its streams, signals and exit code.

The command shares this process's group and terminal.  Signals of the terminal (Ctrl-C)
reach it directly; signals that another process sends to this one are forwarded.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Mapping, Sequence

PASSED_ON = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
TYPED = (signal.SIGINT, signal.SIGQUIT)  # a terminal sends these to its whole group
NOT_FOUND, NOT_EXECUTABLE = 127, 126  # exit codes of a shell
LOOK_EVERY_S = 1.0


def run(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a command in the foreground until it exits, and forward signals to it.

    ``environment`` has all variables of the command.  Returns its exit code; 128 + n
    after signal n.

    Raises
    ------
    OSError
        If the command cannot be started.
    """
    early: list[int] = []
    # handlers, and not SIG_IGN, which the command would inherit; signals that this
    # process was started to ignore (nohup), the command ignores as well
    before = {
        number: signal.signal(number, lambda n, _: early.append(n))
        for number in PASSED_ON
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    awaited = {signal.SIGCHLD, *before}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        # the command inherits descriptors above 2, which a shell may have opened
        process = subprocess.Popen(command, env=dict(environment), close_fds=False)
        signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
        while process.poll() is None:
            # signals that arrived outside sigtimedwait ran a handler, which has no
            # sender: forward those that a terminal does not send
            while early:
                number = early.pop(0)
                if number not in TYPED:
                    process.send_signal(number)
            info = signal.sigtimedwait(awaited, LOOK_EVERY_S)
            # signals from the kernel, which a terminal causes, have a positive code
            if info and info.si_signo != signal.SIGCHLD and info.si_code <= 0:
                process.send_signal(info.si_signo)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
    code = process.returncode
    return code if code >= 0 else 128 - code
