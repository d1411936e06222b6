"""Memory and GPUs of this machine, and the number of ranks that it can start."""

from __future__ import annotations

import os
from pathlib import Path

from moetraffic.errors import LayoutError

MOST_RANKS = 4096
"""Largest number of ranks on one host; more are taken for a typing error."""

MEMORY_INFO = Path("/proc/meminfo")
MEMBERSHIP = Path("/proc/self/cgroup")
GROUPS = Path("/sys/fs/cgroup")
LIMITS = {
    "": ("", "memory.max", "memory.current"),
    "memory": ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
}
"""Folder and files of the memory limit, by controller: of version 2 and 1."""


def available_bytes() -> int | None:
    """Return available memory in bytes; None if the system does not report it.

    The minimum of the available memory that the kernel reports, with swap, and of the
    remainder of the control groups' limits, with the page cache.
    """
    available = []
    try:
        lines = (line.split() for line in MEMORY_INFO.read_text().splitlines())
        kilobytes = {words[0]: int(words[1]) for words in lines}
        free = kilobytes["MemAvailable:"] + kilobytes.get("SwapFree:", 0)
        available.append(free * 1024)
        membership = MEMBERSHIP.read_text().splitlines()
    except (OSError, ValueError, KeyError, IndexError):
        membership = []
    for line in membership:
        _, controllers, path = line.split(":", 2)
        for name in LIMITS.keys() & set(controllers.split(",")):
            folder, limit, used = LIMITS[name]
            root = GROUPS / folder
            own = root / path.lstrip("/")
            # a container sees its own group as the root, whatever its path says
            for group in (own, *own.parents):
                free_bytes = _remainder(group, limit, used)
                available += [] if free_bytes is None else [free_bytes]
                if group == root:
                    break
    return min(available, default=None)


def _remainder(group: Path, limit: str, used: str) -> int | None:
    """Return free bytes within the limit of a control group; None without a limit."""
    try:
        most, now = (int((group / name).read_text()) for name in (limit, used))
        words = (group / "memory.stat").read_text().split()
    except (OSError, ValueError):
        return None  # no limit ("max"), or no such version
    usage = dict(zip(words[::2], map(int, words[1::2]), strict=False))
    return max(0, most - now + usage.get("file", usage.get("total_cache", 0)))


def own_gpu(local_rank: int, visible: int) -> int:
    """Return the index of the GPU of a local rank among those visible to its process.

    That is ``cuda:LOCAL_RANK`` or, where the launcher shows each rank its own GPU only,
    ``cuda:0``.
    """
    if local_rank < visible:
        return local_rank
    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    a_task = os.environ.get("SLURM_GPUS_PER_TASK", "").rpartition(":")[2]
    if visible == 1 and ((shown and "," not in shown) or a_task == "1"):
        return 0
    hidden = "" if shown is None else f" (CUDA_VISIBLE_DEVICES is {shown[:80]!r})"
    few = f"start at most {visible} ranks a host, or " if visible else ""
    raise LayoutError(
        f"local rank {local_rank} sees {visible} GPUs{hidden} and has none of its own: "
        f"{few}use the CPU"
    )


def check_rank_count(ranks: int) -> None:
    """Check that the number of ranks of one host is within its limits."""
    if not 1 <= ranks <= MOST_RANKS:
        raise LayoutError(
            f"one host starts 1 to {MOST_RANKS} ranks, but nproc is {ranks}: change "
            f"--nproc (this machine has {os.cpu_count()} processors)"
        )
