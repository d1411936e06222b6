"""Variables of the environment with which the NCCL backend runs.

This module does not import torch.
"""

from __future__ import annotations

from collections.abc import Mapping

NCCL_ENVIRONMENT = {
    # more streams than hardware queues would wait for each other
    "CUDA_DEVICE_MAX_CONNECTIONS": "32",
    # a thread of torch that ends the process if its watchdog does not respond
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    # errors of the network end the process, without waiting for other ranks
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3",
    # the last operations of each rank, for torch's report of an error
    "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
}
"""Variables that NCCL and CUDA read at the start, where the environment lacks them."""

_READ = ("NCCL_", "TORCH_NCCL_", "CUDA_")  # prefixes of what NCCL and CUDA read


def nccl_settings(environment: Mapping[str, str]) -> str:
    """State the variables that the replay sets, and those that were set before.

    Examples
    --------
    >>> nccl_settings({"NCCL_DEBUG": "INFO"}).partition("; ")[2]
    'from the environment: NCCL_DEBUG=INFO'
    """
    own = [f"{k}={v}" for k, v in NCCL_ENVIRONMENT.items() if k not in environment]
    kept = [f"{k}={v}" for k, v in sorted(environment.items()) if k.startswith(_READ)]
    parts = {"set by the replay": own, "from the environment": kept}
    stated = [f"{name}: {', '.join(found)}" for name, found in parts.items() if found]
    return f"NCCL variables {'; '.join(stated)}"
