"""Loops that numba compiles, where it is installed."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any


def available() -> bool:
    """Whether numba is installed; it is not imported for it."""
    return find_spec("numba") is not None


def compiled(function: Callable[..., Any], *signature: Any, kept: bool = True) -> Any:
    """Compile a function of arrays, which then runs without the interpreter's lock.

    Parameters
    ----------
    function
        Of a module, in the Python that numba knows.
    signature
        numba's, to compile now; none: when it is first called.
    kept
        Keep the machine code for later processes, where a folder lets us.

    Returns
    -------
    callable
        The same function.
    """
    numba: Any = import_module("numba")
    how = {"nogil": True, "error_model": "numpy"}
    try:
        return numba.njit(*signature, cache=kept, **how)(function)
    except (RuntimeError, OSError):
        if not kept:
            raise
        # there is no folder to keep it in, or no room
        return compiled(function, *signature, kept=False)
