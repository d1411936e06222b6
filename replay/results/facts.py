"""Facts of the software, device and network of a rank, for the result of a replay."""

from __future__ import annotations

import os
import platform
import re
from collections import Counter
from pathlib import Path

import torch

import moetraffic

CHOICE = re.compile(r"(\w+): \d+ Bytes -> Algo (\w+) proto (\w+)")
"""Line of NCCL's log of tuning: operation, algorithm and protocol."""

VARIABLES = ("NCCL_", "GLOO_", "UCX_", "TORCH_NCCL_", "CUDA_DEVICE_MAX_CONNECTIONS")


def stack_rows(backend: str, device: torch.device) -> list[dict[str, str]]:
    """List versions, device, interfaces and settings of this rank; absent ones not.

    NCCL states algorithm and protocol only in its log: with ``NCCL_DEBUG=INFO``,
    ``NCCL_DEBUG_SUBSYS=TUNING`` and ``NCCL_DEBUG_FILE`` set, they are read from it.
    """
    facts = {
        "backend": backend,
        "moetraffic": moetraffic.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "device": "cpu",
    }
    if device.type == "cuda":
        version = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
        facts |= {
            "device": torch.cuda.get_device_name(device),
            "cuda": torch.version.cuda or "",
            "nccl": ".".join(map(str, version)),
            "driver": _read(Path("/sys/module/nvidia/version")),
        }
    facts["interfaces"] = ", ".join(filter(None, map(_interface, _list("net"))))
    facts["infiniband"] = ", ".join(
        f"{card.name} {_read(card / 'ports/1/rate')}" for card in _list("infiniband")
    )
    facts |= {
        name: value
        for name, value in sorted(os.environ.items())
        if name.startswith(VARIABLES)
    }
    facts["algorithms"] = nccl_choices(os.environ.get("NCCL_DEBUG_FILE", ""))
    return [
        {"field": name, "recorded": value} for name, value in facts.items() if value
    ]


def nccl_choices(log: str) -> str:
    """Count the algorithms and protocols in a log of NCCL: "AllReduce RING LL (12)".

    In the name of the log, ``%h`` is the host and ``%p`` the process.
    """
    name = log.replace("%h", platform.node()).replace("%p", str(os.getpid()))
    choices = Counter(CHOICE.findall(_read(Path(name)))) if log else Counter()
    return ", ".join(f"{' '.join(c)} ({n})" for c, n in choices.most_common())


def _list(kind: str) -> list[Path]:
    folder = Path("/sys/class") / kind
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _interface(folder: Path) -> str:
    """Describe a network interface that is up: "eth0 MTU 1500, 10000 Mbit/s"."""
    if _read(folder / "operstate") != "up" and folder.name != "lo":
        return ""
    speed = _read(folder / "speed")  # Mbit/s; -1 or absent: unknown
    known = f", {speed} Mbit/s" if speed.isdecimal() else ""
    return f"{folder.name} MTU {_read(folder / 'mtu')}{known}"


def _read(path: Path) -> str:
    """Read a file's text; "" where it is absent or the system refuses."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
