"""Choice of a communication backend by name."""

from __future__ import annotations

from .backend import Backend
from .process_groups import BUILT_IN, Nccl
from .requirements import installed, validate_backend


def backend(name: str, *, registered: bool = False) -> Backend:
    """Create a communication backend by name, built in or from a plugin package.

    Parameters
    ----------
    name
        Name of the backend.
    registered
        Whether buffers are registered with the network library; only NCCL supports
        this.

    Raises
    ------
    ReplayError
        If there is no such backend.
    """
    validate_backend(name, registered=registered)
    if registered:
        return Nccl(registered=True)
    if name in BUILT_IN:
        return BUILT_IN[name]()
    made: Backend = installed()[name].load()()
    return made
