"""Check torch's backends, GPUs, network interfaces, files and limits."""

from __future__ import annotations

import fcntl
import io
import os
import platform
import resource
import shutil
import socket
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from moetraffic.errors import CaptureError, LayoutError
from moetraffic.files import remedy
from moetraffic.launch import current_rank
from moetraffic.launch.machine_resources import available_bytes, own_gpu
from moetraffic.trace.segments.store import SMALLEST_LIMIT, file_size_limit
from moetraffic.units import byte_size
from moetraffic.user_cache import user_cache

from .exchange_check import try_ranks
from .finding import Finding, State, finding
from .software import software

RANKS = 2
FEW_FILES = 1024
"""Limit on the open files of a process below which many ranks cannot start."""
LITTLE_BYTES = 1 << 30


def examine(folder: Path, *, exchange: bool = True) -> list[Finding]:
    """Check all requirements of capture, analysis and replay on this machine.

    Traces will be written to ``folder``.  ``exchange`` also runs an all-to-all over
    gloo on two ranks (or on the ranks of another launcher), and compares their clocks,
    which takes seconds.  Findings are in the order of their dependencies.
    """
    found = [*software(), *_torch(), *_hook(), *_files(folder), *_limits(), *_network()]
    try:
        rank_env = current_rank()
    except LayoutError as error:
        return [*found, finding("network", "launcher", State.STOP, str(error))]
    said = "none: moetraffic starts ranks of this host itself"
    if rank_env is not None:
        said = f"this is rank {rank_env.rank} of {rank_env.world}"
    found.append(finding("network", "launcher", State.OK, said))
    return found + try_ranks(RANKS, rank_env) if exchange else found


def _torch() -> Iterator[Finding]:
    check = partial(finding, "torch")
    try:
        import torch
        import torch.distributed as dist
    except ImportError as error:
        yield check("torch", State.STOP, f"does not import: {error}", "reinstall it")
        return
    if not dist.is_available():
        yield check(
            *("distributed", State.STOP),
            "this torch is built without torch.distributed",
            "install a torch that has it",
        )
        return
    gloo = dist.is_gloo_available() if hasattr(dist, "is_gloo_available") else True
    yield check(
        *("gloo", State.OK if gloo else State.STOP),
        "available: ranks on CPUs" if gloo else "missing: ranks on CPUs need it",
        "install a torch that has it",
    )
    cuda, devices = torch.version.cuda, torch.cuda.device_count()
    nccl = dist.is_nccl_available()
    said = "not in this torch: GPUs cannot exchange through it"
    if nccl and cuda:
        number = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
        said = f"version {'.'.join(map(str, number))}, for CUDA {cuda}"
    elif nccl:
        said = "available, of unknown version"
    state = State.OK if nccl or not devices else State.NOTE
    yield check("NCCL", state, said, "install a torch with CUDA")
    ucc = getattr(dist, "is_ucc_available", bool)()
    for name, available in (("MPI", dist.is_mpi_available()), ("UCC", ucc)):
        said = "not in this torch (needed only for --backend)"
        yield check(name, State.OK, "available" if available else said)
    named = [torch.cuda.get_device_properties(d) for d in range(devices)]
    gpus = "; ".join(f"{p.name}, {p.total_memory / 1e9:.0f} GB" for p in named)
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    if not named and cuda and hidden is not None:
        yield check(
            *("GPUs", State.NOTE),
            f"none: CUDA_VISIBLE_DEVICES is {hidden!r}",
            "unset CUDA_VISIBLE_DEVICES to use the GPUs of this host, if it has any",
        )
        return
    yield check("GPUs", State.OK, gpus or "none: ranks compute and send on CPUs")
    local = os.environ.get("LOCAL_RANK", "")
    if named and local.isdecimal():
        try:
            own_gpu(int(local), devices)
        except LayoutError as error:
            yield check("GPU of this rank", State.STOP, str(error))


def _hook() -> Iterator[Finding]:
    from moetraffic.capture.hook import native

    check = partial(finding, "torch", "compiled hook")
    try:
        compiled = native.load() is not None
    except CaptureError as error:
        yield check(State.STOP, str(error))
        return
    if compiled:
        yield check(State.OK, "available: lowest overhead per recorded collective")
        return
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    yield check(
        State.NOTE,
        "not built for this torch: capture uses the hook in Python",
        "moetraffic build"
        if compiler
        else "install a C++ compiler, then moetraffic build",
    )


def _network() -> Iterator[Finding]:
    check = partial(finding, "network")
    interfaces = {name: _interface(name) for _, name in socket.if_nameindex()}
    yield check(
        *("interfaces", State.OK if interfaces else State.STOP),
        "; ".join(f"{name} {state}" for name, state in interfaces.items()) or "none",
        "ranks need at least the loopback interface: ip link set lo up",
    )
    for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        for name in filter(None, os.environ.get(variable, "").split(",")):
            # NCCL takes prefixes, =exact names and ^exclusions
            bare = name.lstrip("^=")
            known = any(other.startswith(bare) for other in interfaces)
            yield check(
                *(variable, State.OK if known else State.STOP),
                name if known else f"{name}, which is no interface of this host",
                f"set it to one of {', '.join(interfaces)}, or unset it",
            )
    host = platform.node()
    try:
        address = socket.getaddrinfo(host, None)[0][4][0]
    except OSError as error:
        yield check(
            *("host name", State.NOTE),
            f"{host} has no address ({error}): ranks use the loopback interface",
            "for several hosts, give it one in /etc/hosts or set GLOO_SOCKET_IFNAME",
        )
    else:
        yield check("host name", State.OK, f"{host} is {address}")


def _interface(name: str) -> str:
    """Read the state and speed of a network interface."""
    at = Path("/sys/class/net") / name
    try:
        state = (at / "operstate").read_text().strip()
    except OSError:
        return "of unknown state"
    try:
        speed = int((at / "speed").read_text())
    except (OSError, ValueError):
        speed = 0  # loopback and virtual interfaces report none
    up = "up" if state in ("up", "unknown") else state
    return f"{up}, {speed / 1000:g} Gb/s" if speed > 0 else up


def _files(folder: Path) -> Iterator[Finding]:
    import h5py
    import numpy as np

    image, rows = io.BytesIO(), np.arange(1000)
    # in memory first: HDF5 may crash where a file cannot be written
    with h5py.File(image, "w") as file:
        file.create_dataset("rows", data=rows, compression="gzip", shuffle=True)
    try:
        with tempfile.TemporaryDirectory(dir=folder, prefix=".moetraffic-") as made:
            path = Path(made) / "tried.h5"
            path.write_bytes(image.getvalue())
            with h5py.File(path) as file:
                same = bool((file["rows"][:] == rows).all())
            with path.open("rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        yield finding(
            *("files", "folder", State.STOP),
            f"no trace can be written to {folder} ({error.strerror or error})",
            f"{remedy(error)}, with file locks (-o)",
        )
    else:
        yield finding(
            *("files", "HDF5", State.OK if same else State.STOP),
            f"{h5py.version.hdf5_version}, written and read in {folder}",
            "reinstall h5py",
        )
        yield disk_space(folder, LITTLE_BYTES, "files", "disk")
        yield _capture_size(folder)
    yield _file_size()
    yield _temporary_folder()
    yield _cache()


def _file_size() -> Finding:
    limit = file_size_limit()
    check = partial(finding, "files", "file size")
    if limit is None:
        return check(State.OK, "no limit")
    return check(
        State.NOTE if limit >= SMALLEST_LIMIT else State.STOP,
        f"at most {limit / 1e6:.3g} MB per file: larger traces are not written",
        "ulimit -f unlimited",
    )


def _capture_size(folder: Path) -> Finding:
    """State how much a capture can record in a folder, and how to bound it."""
    most, limit = shutil.disk_usage(folder).free // 2, file_size_limit()
    why = "half of the free space, which a merge needs twice"
    if limit is not None and limit < most:
        most, why = limit, "the limit on file sizes, as a trace is one file"
    return finding(
        *("files", "capture size", State.OK),
        f"at most {byte_size(most)}: {why}; --max-size "
        f"{byte_size(most).replace(' ', '')} bounds a run",
    )


def _temporary_folder() -> Finding:
    asked, name = os.environ.get("TMPDIR"), "temporary folder"
    try:
        temporary = Path(tempfile.gettempdir())
    except FileNotFoundError:
        return finding(
            *("files", name, State.STOP),
            "no folder for temporary files can be written",
            "set TMPDIR to a folder that you may write to, with space",
        )
    if asked and Path(asked).absolute() != temporary.absolute():
        return finding(
            *("files", name, State.NOTE),
            f"TMPDIR is {asked}, which cannot be written: {temporary} is used",
            "set TMPDIR to a folder that you may write to, with space",
        )
    return disk_space(temporary, LITTLE_BYTES // 4, "files", name)


def _cache() -> Finding:
    """Check the user's cache, which libraries and the compiled hook write to."""
    check, cache = partial(finding, "files", "user cache"), user_cache()
    if cache is None:
        return check(
            State.NOTE,
            f"user {os.getuid()} has neither HOME nor an entry in the passwd database",
            "set HOME to a folder that you may write to",
        )
    there = next(p for p in (cache, *cache.parents) if p.exists())
    writable = os.access(there, os.W_OK)
    return check(
        State.OK if writable else State.NOTE,
        str(cache) if writable else f"{cache} cannot be written",
        "set XDG_CACHE_HOME to a folder that you may write to",
    )


def disk_space(folder: Path, needed: float, area: str, name: str) -> Finding:
    """Check the free disk space of a folder."""
    free = shutil.disk_usage(folder).free
    return finding(
        *(area, name, State.OK if free >= needed else State.NOTE),
        f"{free / 1e9:.1f} GB are free in {folder}"
        + ("" if free >= needed else f", less than {needed / 1e9:.1f} GB"),
        "make room, or write elsewhere with -o",
    )


def _limits() -> Iterator[Finding]:
    check = partial(finding, "machine")
    cores = len(os.sched_getaffinity(0))
    yield check("processors", State.OK, f"{cores} are available")
    memory = available_bytes()
    enough = memory is None or memory >= LITTLE_BYTES
    yield check(
        *("memory", State.OK if enough else State.NOTE),
        "unknown" if memory is None else f"{memory / 1e9:.1f} GB are available",
        "a rank takes about 0.3 GB: start few",
    )
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = files == resource.RLIM_INFINITY
    yield check(
        *("open files", State.OK if unlimited or files >= FEW_FILES else State.NOTE),
        "no limit" if unlimited else f"at most {files} per process",
        f"ulimit -n {FEW_FILES}",
    )
