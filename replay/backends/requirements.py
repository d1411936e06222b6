"""Check that a backend exists, and has its GPU, before any rank is started.

This module does not import torch, unless a backend needs a GPU.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points

from moetraffic.errors import ReplayError

ENTRY_POINTS = "moetraffic.backends"

ON_CPU = ("gloo", "gloo-duplex")
ON_GPU = ("nccl",)
"""Backends that launch on NCCL's communicators, and need a CUDA device."""


def installed() -> dict[str, EntryPoint]:
    """Return the backends of other packages, by name."""
    return {entry.name: entry for entry in entry_points(group=ENTRY_POINTS)}


def validate_backend(name: str) -> None:
    """Check that there is a backend of this name.

    Raises
    ------
    ReplayError
        If there is none.
    """
    built_in = (*ON_CPU, *ON_GPU)
    if name not in built_in and name not in (others := installed()):
        raise ReplayError(
            f"the backend is one of {', '.join([*built_in, *others])}, not {name!r}: "
            "choose one of these, or install the package that provides it"
        )


def validate_device(name: str) -> None:
    """Check that this host has a GPU if the backend needs one.

    Raises
    ------
    ReplayError
        If the backend needs one and torch sees none.
    """
    if name not in ON_GPU:
        return
    import torch  # slow import

    if not torch.cuda.is_available():
        raise ReplayError(
            f"the backend {name} needs a CUDA device for each rank of a host, but "
            f"torch {torch.__version__} sees none: use --backend gloo"
        )
