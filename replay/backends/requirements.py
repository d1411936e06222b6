"""Check that a backend exists, and has its GPU, before any rank is started.

Torch is imported only for a backend that needs a GPU, or that is not built in.
"""

from __future__ import annotations

from moetraffic.errors import ReplayError

BUILT_IN = ("gloo", "gloo-duplex", "nccl")


def validate_backend(name: str) -> None:
    """Check that there is a backend of this name, built in or registered with torch.

    Packages register theirs when torch is imported (entry point ``torch.backends``).

    Raises
    ------
    ReplayError
        If there is none, or it supports neither host memory nor CUDA devices.
    """
    if name in BUILT_IN:
        return
    import torch.distributed as dist  # slow import

    registered = [
        other
        for other in dist.Backend.backend_list
        if other not in ("undefined", *BUILT_IN)
        and getattr(dist, f"is_{other}_available", lambda: True)()
    ]
    if name not in registered:
        raise ReplayError(
            f"the backend is one of {', '.join([*BUILT_IN, *registered])}, not "
            f"{name[:40]!r}: choose one of these, or install the package that "
            "registers it with torch"
        )
    devices = dist.Backend.backend_capability[name]
    if not {"cpu", "cuda"} & {*devices}:
        raise ReplayError(
            f"a replay has its buffers in host memory or on a CUDA device, but the "
            f"backend {name} supports {', '.join(devices)} alone: choose another one"
        )


def on_gpu(name: str) -> bool:
    """Whether a backend has its buffers on a CUDA device: it has none on the host."""
    if name in BUILT_IN:
        return name == "nccl"
    import torch.distributed as dist  # slow import

    return "cpu" not in dist.Backend.backend_capability[name]


def validate_device(name: str) -> None:
    """Check that this host has a GPU if the backend needs one.

    Raises
    ------
    ReplayError
        If the backend needs one and torch sees none.
    """
    if not on_gpu(name):
        return
    import torch  # slow import

    if not torch.cuda.is_available():
        raise ReplayError(
            f"the backend {name} needs a CUDA device for each rank of a host, but "
            f"torch {torch.__version__} sees none: use --backend gloo"
        )
