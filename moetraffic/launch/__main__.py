"""First lines of a rank: ``python -m moetraffic.launch -m MODULE`` or ``... FILE``.

The rank asks the kernel for SIGKILL when its supervisor dies (``prctl``), and then runs
its program in this process.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys

from .board import State, own
from .environment import PARENT

PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def follow(parent: int) -> None:
    """Have this process killed when its parent, a process id, dies."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit("the parent of this process has ended")  # before the request


def main(arguments: list[str]) -> None:
    """Follow the supervisor to its end, and run a program."""
    follow(int(os.environ.get(PARENT, "0")))
    own().note(state=State.STARTING)
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        sys.path[0] = os.path.dirname(os.path.abspath(arguments[0]))
        runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
