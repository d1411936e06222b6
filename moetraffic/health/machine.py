"""Check this machine for capture and replay: software, torch, files and memory.

:func:`examine` checks what every run needs, and :func:`before_replay` what the replay
of a trace needs.
"""

from __future__ import annotations

import enum
import fcntl
import importlib.metadata
import os
import platform
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import moetraffic
from moetraffic.errors import CaptureError, LayoutError, TraceError, install_command
from moetraffic.files import remedy
from moetraffic.launch.devices import available_bytes, own_gpu
from moetraffic.launch.environment import current_rank
from moetraffic.trace import Trace
from moetraffic.trace.merge.log_folder import SMALLEST_LIMIT, file_size_limit

LITTLE_BYTES = 1 << 30


class State(str, enum.Enum):
    """Severity of a finding of a health check."""

    OK = "ok"
    NOTE = "note"  # degraded, or missing but not required
    STOP = "stop"  # a capture or a replay would not run


@dataclass(frozen=True)
class Finding:
    """Result of one health check: state, observation and remedy."""

    area: str  # software, torch, files, machine, network or replay
    name: str
    state: State
    said: str  # observation
    remedy: str = ""  # action to take, if the state is not OK


def check(
    area: str, name: str, good: bool, said: str, remedy: str, bad: State = State.STOP
) -> Finding:
    """Create a finding of state OK, without the remedy, or ``bad``."""
    if good:
        return Finding(area, name, State.OK, said)
    return Finding(area, name, bad, said, remedy)


def stops(findings: Iterable[Finding]) -> list[Finding]:
    """Select the findings that prevent a capture or a replay."""
    return [f for f in findings if f.state is State.STOP]


def examine(folder: Path) -> list[Finding]:
    """Check what capture, analysis and replay need on this machine.

    Traces will be written to ``folder``.  Findings are in the order of their
    dependencies.
    """
    return [*software(), *backends(), *files(folder), launcher()]


def software() -> Iterator[Finding]:
    """Check the installed versions of the packages that moetraffic requires."""
    system = f"{platform.system()} {platform.release()}, {platform.machine()}"
    python = f"{platform.python_implementation()} {platform.python_version()}"
    yield Finding("software", "python", State.OK, f"{python}, {system}")
    yield Finding("software", "moetraffic", State.OK, moetraffic.__version__)
    for name, least, extra in requirements():
        try:
            version = importlib.metadata.version(name)
            good = numbers(version) >= numbers(least)
            said = version if good else f"{version}, but {least} or newer is needed"
        except importlib.metadata.PackageNotFoundError:
            good, said = False, "not installed"
        install = install_command(extra) if extra else f"pip install '{name}>={least}'"
        bad = State.NOTE if extra else State.STOP
        yield check("software", name, good, said, install, bad)


def requirements() -> list[tuple[str, str, str]]:
    """List required packages: name, least version, and extra ("": always required)."""
    try:
        texts = importlib.metadata.requires("moetraffic") or []
    except importlib.metadata.PackageNotFoundError:
        return []  # a checkout that is not installed
    pattern = re.compile(r"([\w-]+)>=([\d.]+)(?:; extra == ['\"]([\w-]+)['\"])?")
    found = [match.groups("") for text in texts if (match := pattern.fullmatch(text))]
    return [
        (name, least, extra)
        for name, least, extra in found
        if not extra.startswith(("docs", "examples", "test")) and name != "setuptools"
    ]


def numbers(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version: (2, 13, 0) of "2.13.0+cpu"."""
    leading = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, leading.group().split("."))) if leading else ()


def backends() -> Iterator[Finding]:
    """Check torch's backends, the GPUs and the compiled hook."""
    try:
        import torch
        import torch.distributed as dist
    except ImportError as error:
        said = f"does not import: {error}"
        yield Finding("torch", "torch", State.STOP, said, "reinstall it")
        return
    gloo = dist.is_available() and dist.is_gloo_available()
    said = "available: ranks on CPUs" if gloo else "missing: ranks on CPUs need it"
    install = "install a torch with torch.distributed and gloo"
    yield check("torch", "gloo", gloo, said, install)
    devices = torch.cuda.device_count()
    gpus = [torch.cuda.get_device_properties(device) for device in range(devices)]
    said = "; ".join(f"{gpu.name}, {gpu.total_memory / 1e9:.0f} GB" for gpu in gpus)
    said = said or "none: ranks compute and send on CPUs"
    yield Finding("torch", "GPUs", State.OK, said)
    if gpus:
        nccl = dist.is_available() and dist.is_nccl_available()
        said = "not in this torch: GPUs cannot exchange through it"
        if nccl:
            version = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
            number = ".".join(map(str, version))
            said = f"version {number}, for CUDA {torch.version.cuda}"
        install = "install a torch with CUDA"
        yield check("torch", "NCCL", nccl, said, install, State.NOTE)
    local_rank = os.environ.get("LOCAL_RANK", "")
    if gpus and local_rank.isdecimal():
        try:
            own_gpu(int(local_rank), devices)
        except LayoutError as error:
            yield Finding("torch", "GPU of this rank", State.STOP, str(error))
    yield compiled_hook()


def compiled_hook() -> Finding:
    """Check whether the hook is compiled."""
    from moetraffic.capture.hook import native

    try:
        compiled = native.load() is not None
    except CaptureError as error:
        return Finding("torch", "compiled hook", State.STOP, str(error))
    said = "not built for this torch: capture uses the hook in Python"
    if compiled:
        said = "available: lowest overhead per recorded collective"
    build = "moetraffic build"
    return check("torch", "compiled hook", compiled, said, build, State.NOTE)


def files(folder: Path) -> Iterator[Finding]:
    """Check the folder of traces, its space, the temporary folder, and memory."""
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".moetraffic-") as file:
            file.write(b"\0")
            file.flush()
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        said = f"no trace can be written to {folder} ({error.strerror or error})"
        choose = f"{remedy(error)}, with file locks (-o)"
        yield Finding("files", "folder", State.STOP, said, choose)
    else:
        yield space("files", "folder", folder, LITTLE_BYTES)
    limit, said, bad = file_size_limit(), "no limit", State.NOTE
    if limit is not None:
        said = f"at most {limit / 1e6:.3g} MB per file: larger traces are not written"
        bad = State.STOP if limit < SMALLEST_LIMIT else State.NOTE
    raise_it = "ulimit -f unlimited"
    yield check("files", "file size", limit is None, said, raise_it, bad)
    try:
        temporary = Path(tempfile.gettempdir())
    except FileNotFoundError:
        said = "none can be written"
        choose = "set TMPDIR to a folder that you may write to, with space"
        yield Finding("files", "temporary folder", State.STOP, said, choose)
    else:
        yield space("files", "temporary folder", temporary, LITTLE_BYTES // 4)
    memory = available_bytes()
    good = memory is None or memory >= LITTLE_BYTES
    said = "unknown" if memory is None else f"{memory / 1e9:.1f} GB are available"
    few = "a rank takes about 0.3 GB: start few"
    yield check("machine", "memory", good, said, few, State.NOTE)


def space(area: str, name: str, folder: Path, needed: float) -> Finding:
    """Check the free disk space of a folder."""
    free = shutil.disk_usage(folder).free
    said = f"{free / 1e9:.1f} GB are free in {folder}"
    if free < needed:
        said += f", less than {needed / 1e9:.1f} GB"
    elsewhere = "make room, or write elsewhere"
    return check(area, name, free >= needed, said, elsewhere, State.NOTE)


def launcher() -> Finding:
    """Check the variables with which a launcher names this process's rank."""
    said = "none: moetraffic starts ranks of this host itself"
    try:
        if (rank := current_rank()) is not None:
            said = f"this is rank {rank.rank} of {rank.world}"
    except LayoutError as error:
        return Finding("network", "launcher", State.STOP, str(error))
    return Finding("network", "launcher", State.OK, said)


def before_replay(trace: Path, *, nproc: int | None, folder: Path) -> list[Finding]:
    """Check what the replay of a trace file needs, other than memory and a network.

    ``nproc`` is the number of ranks to start on this host, None for that of the trace;
    the replayed trace will be written to ``folder``.
    """
    try:
        with Trace.open(trace) as opened:
            world, complete = opened.meta.world, opened.meta.complete
            operations, iterations = len(opened.occurrences), len(opened.iterations)
    except TraceError as error:
        return [Finding("replay", "trace", State.STOP, str(error))]
    content = f"{operations} operations of {world} ranks, {iterations} iterations"
    if not complete:
        content += ", of which some are missing"
    missing = "give --complete-missing peers or mean"
    ranks, number = nproc or world, f"{nproc or world}, as in the trace"
    if ranks != world:
        number = f"{ranks}, but the trace has {world}"
    change = "fold" if ranks < world else "expand"
    change = f"give replay --{change} {ranks}, or change --nproc"
    return [
        check("replay", "trace", complete, content, missing, State.NOTE),
        check("replay", "ranks", ranks == world, number, change),
        # the same operations with other times: about the same size
        space("replay", "disk", folder, 2 * trace.stat().st_size),
    ]
