"""Compile loops over arrays with numba, where it is installed."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any


def available() -> bool:
    """Return whether numba is installed, without importing it."""
    return find_spec("numba") is not None


def compiled(function: Callable[..., Any], *signature: Any, kept: bool = True) -> Any:
    """Compile a function of arrays with numba, to run without holding the GIL.

    Parameters
    ----------
    function
        Function at module level, in the subset of Python that numba supports.
    signature
        numba signature to compile immediately; without one, the first call compiles.
    kept
        Cache the machine code on disk for later processes, if a folder is writable.
    """
    numba: Any = import_module("numba")
    how = {"nogil": True, "error_model": "numpy"}
    try:
        return numba.njit(*signature, cache=kept, **how)(function)
    except (RuntimeError, OSError):
        if not kept:
            raise
        # no writable cache folder, or a full disk
        return compiled(function, *signature, kept=False)
