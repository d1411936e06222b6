"""Start a rank that the kernel kills when its supervisor dies.

``python parent_death_signal.py PARENT COMMAND...`` requests SIGKILL on the death of the
supervisor (``PR_SET_PDEATHSIG``, which survives ``exec``) and then executes the
command.  A separate process does this because Python code between fork and exec may
deadlock in a parent with threads.  It imports nothing of this library, to start fast.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
NOT_FOUND = 127  # a shell's exit status for a command that cannot be run


def main(arguments: list[str]) -> int:
    """Request the parent-death signal, then execute the command; return on failure."""
    parent, command = int(arguments[0]), arguments[1:]
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        return NOT_FOUND  # the supervisor died before the request
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"cannot run {command[0]}: {error.strerror}", file=sys.stderr)
        return NOT_FOUND


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
