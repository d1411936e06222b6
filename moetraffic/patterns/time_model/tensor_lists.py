"""Time of collectives on lists of tensors, a tensor for each rank, beside the network.

``torch.distributed.all_gather`` and ``reduce_scatter`` of PyTorch 1.8 move a flat
buffer of their own, and copy each rank's tensor out of or into it
(``ProcessGroupNCCL.cpp``).  ZeRO 3 of DeepSpeed up to 0.5.4 calls them for each weight
matrix, and once more in recomputation: it waits for the device, makes the list in
Python, and passes over the buffer several times (``partition_parameters.py``,
``_allgather_param``; ``stage3.py``, ``fetch_sub_module`` and ``average_tensor``).
Later versions gather flat buffers (DeepSpeed, pull request 1188).
"""

from __future__ import annotations

import numpy as np

from moetraffic.arrays import Float64
from moetraffic.patterns.values import Values

from .calls import Traffic
from .gpus import Gpu

ENTRY_S = 2.7e-6
"""Of the host for a tensor of the list, a view and a query of the own rank: thread CPU
time of that loop on one core of an AMD EPYC with PyTorch 2 (384 to 1536 tensors: 2.7 to
2.9 us)."""

COPY_START_S = Gpu.start_s
"""Of the GPU for a tensor's copy, as for any kernel."""

GATHERED, SCATTERED = 4, 4
"""Times that a buffer passes through memory: filled with zeros, copied (read and
written), read for a norm; divided by the ranks (read and written) and copied."""


def list_time(calls: Traffic, memory_bytes_s: Values) -> Float64:
    """Seconds that lists of tensors add to collectives; 0 where buffers are flat."""
    if not np.any(calls.entries):
        return np.zeros(())  # most often: searches have no lists
    passes = GATHERED if calls.collective == "all_gather" else SCATTERED
    one = calls.entries * (ENTRY_S + COPY_START_S)
    one = one + passes * calls.buffer / memory_bytes_s
    return np.where(calls.entries > 0, calls.calls * one, 0.0)
