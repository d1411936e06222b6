"""Close the recorder before a program ends its process by ``os._exit``.

``os._exit`` runs no handler of the interpreter.  A function takes its place while the
recorder runs; forked children, and programs that imported ``_exit`` by name before, use
the original.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

PATIENCE_S = 10.0
"""Maximum duration of closing: another thread may hold what it needs."""


def before_exit(closing: Callable[[int], None]) -> Callable[[], None]:
    """Call a function with the exit status before ``os._exit`` ends this process.

    The result is a function that restores ``os._exit``.
    """
    original: Any = os._exit
    process = os.getpid()

    def _exit(status: int) -> None:
        if os.getpid() == process:
            thread = threading.Thread(target=closing, args=(status,), daemon=True)
            thread.start()
            thread.join(PATIENCE_S)
        original(status)

    exit_: Any = _exit
    os._exit = exit_

    def restore() -> None:
        if os._exit is exit_:
            os._exit = original

    return restore
