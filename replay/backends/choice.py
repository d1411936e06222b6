"""Choice of a communication backend by name."""

from __future__ import annotations

from .backend import Backend
from .process_groups import BUILT_IN
from .requirements import installed, validate_backend


def backend(name: str) -> Backend:
    """Create a communication backend by name, built in or from a plugin package.

    Parameters
    ----------
    name
        Name of the backend.

    Raises
    ------
    ReplayError
        If there is no such backend.
    """
    validate_backend(name)
    if name in BUILT_IN:
        return BUILT_IN[name]()
    made: Backend = installed()[name].load()()
    return made
