"""Check a workload against this machine's memory and GPUs before it starts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from moetraffic.errors import LayoutError
from moetraffic.patterns import Workload
from moetraffic.patterns.workload import least_bytes
from moetraffic.workload.text import check as check_text

MOST_RANKS = 4096
"""Largest number of ranks on one host; more are taken for a typing error."""

_ROOT = Path("/sys/fs/cgroup")
_MEMBERSHIP = Path("/proc/self/cgroup")


def check_workload(workload: Workload, *, ranks: int) -> None:
    """Check that this machine can train a workload, before any rank starts.

    ``ranks`` is the number of its ranks on this host; for a virtual run, of simulated
    ranks.
    """
    shape, training = workload.model, workload.training
    if training.device == "cuda":
        _check_gpu()
    else:
        # a virtual run is one process, whatever the number of its ranks
        share = 1.0 if training.virtual else ranks / workload.layout.world
        _check_memory(least_bytes(workload) * share)
    check_text(
        training.corpus,
        sequence=shape.window,
        vocabulary=shape.vocabulary - int(shape.masked),
    )


def available_bytes() -> int | None:
    """Return available memory in bytes; None if the system does not report it.

    The minimum of the available memory that the kernel reports, with swap, and of the
    remainder of the control groups' limits (version 2 or 1), with the page cache.
    """
    known = [found for found in (_system(), _control_group()) if found is not None]
    return min(known, default=None)


def _system() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        parts = (line.partition(":") for line in lines)
        kilobytes = {name: int(rest.split()[0]) for name, _, rest in parts}
        return (kilobytes["MemAvailable"] + kilobytes.get("SwapFree", 0)) * 1024
    except (OSError, ValueError, KeyError, IndexError):
        return None


def _control_group() -> int | None:
    """Return available memory within the limits of this process's control groups."""
    known = []
    for folder, limit, used in _groups():
        try:
            most = int((folder / limit).read_text())
            now = int((folder / used).read_text())
            stat = (folder / "memory.stat").read_text().split()
        except (OSError, ValueError):
            continue  # no limit ("max"), or no such version
        parts = dict(zip(stat[::2], map(int, stat[1::2]), strict=False))
        cache = parts.get("file", parts.get("total_cache", 0))
        known.append(max(0, most - now + cache))
    return min(known, default=None)


def _groups() -> Iterator[tuple[Path, str, str]]:
    """Yield folders and file names of the control groups that contain this process.

    A container sees its own group as the root, whatever its path says.
    """
    try:
        lines = _MEMBERSHIP.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            root, names = _ROOT, ("memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            root = _ROOT / "memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
        else:
            continue
        own = root / path.lstrip("/")
        for folder in (own, *own.parents):
            yield folder, *names
            if folder == root:
                break


def _check_memory(needed: float) -> None:
    available = available_bytes()
    if available is not None and needed > available:
        raise LayoutError(
            f"the model, its gradients and the optimizer's moments need at least "
            f"{needed / 1e9:.3g} GB on this machine, but {available / 1e9:.3g} GB are "
            "available: lower --layers, --hidden, --experts, --micro-batch or --nproc"
        )


def _check_gpu() -> None:
    # slow import, needed only if a GPU is requested
    import torch

    if not torch.cuda.is_available():
        raise LayoutError(
            "device cuda needs a CUDA GPU and a torch built for it, but torch "
            f"{torch.__version__} sees none: use --device cpu"
        )


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
    if ranks < 1:
        raise LayoutError(
            f"at least one rank trains, but nproc is {ranks}: raise --nproc"
        )
    if ranks > MOST_RANKS:
        raise LayoutError(
            f"one host starts at most {MOST_RANKS} ranks, but nproc is {ranks}: lower "
            f"--nproc (this machine has {os.cpu_count()} processors)"
        )
