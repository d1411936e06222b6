"""Compiled dispatcher hook, which records calls without entering Python.

torch takes some 10 to 40 us to enter a kernel written in Python and to leave it again,
whatever that kernel does.  Compiled, it costs a call about one; ``moetraffic build``
compiles it, once for each torch and each Python.  Both kernels note the same words.

The library lies in the environment that torch is in, or where that cannot be written,
in the user's cache; its name tells torch, Python and the source, so that one that is
out of date is never loaded.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import shutil
import sys
import sysconfig
import tempfile
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol, cast

import torch

from moetraffic.errors import CaptureError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SOURCE = Path(__file__).with_name("native.cpp")
INCLUDED = tuple(map(SOURCE.with_name, ("native_buffer.hpp", "native_spent.hpp")))
VARIABLE = "MOETRAFFIC_HOOK"
"""``python`` leaves the compiled hook alone; ``native`` refuses to do without."""


class Native(Protocol):
    """Interface of the compiled library."""

    def install(
        self,
        operators: Sequence[tuple[str, int, int, int]],
        arrive: Callable[[], tuple[int, int]],
        meet: Callable[[Any], int],
        number: Callable[[str, Any], int],
        before: Callable[[Any], Any],
        launched: Callable[[int, Any, Any, int, Any], None],
        failed: Callable[[str, str], None],
    ) -> None:
        """Install a kernel on each c10d operator.

        Parameters
        ----------
        operators
            Name, index into :data:`moetraffic.capture.pipe_format.OPERATIONS`, and the
            positions of the process group and of this rank's input (-1 for none) among
            the operator's arguments.
        arrive
            Numbers of the calling thread and of the place where it stands; asked once
            a thread.
        meet
            Number of a process group, asked once a group.
        number
            Likewise of a dtype (told by a tensor) or an autograd node (its name).
        before, launched, failed
            As of :class:`.python.Sink`, for calls that are asynchronous or on a device.
        """
        ...

    def uninstall(self) -> None:
        """Remove the kernels."""
        ...

    def mark(self) -> None:
        """Mark the position of a Python record among those of calls."""
        ...

    def stand(self, place: int) -> None:
        """Set this thread's context."""
        ...

    def waited(self) -> bool:
        """Mark this thread's last synchronous call as completed."""
        ...

    def take(self) -> tuple[list[bytes | None], int]:
        """Take the recorded words (None for a mark) and the number of lost calls."""
        ...

    def calls(self) -> int:
        """Number of calls recorded in this process."""
        ...

    def spent(self) -> list[tuple[int, int]]:
        """Histogram of the hook's own time per call.

        From the kernel's begin until it passes the call on, and from the call's end
        until its record has it.

        Returns
        -------
        list of tuple
            Nanoseconds that a call took less than, and how many calls did that took
            no less than the one before; the steps are a fifth at the most.
        """
        ...

    def waiting(self) -> int:
        """Number of records that wait to be taken."""
        ...


def load() -> Native | None:
    """Load the compiled hook of this torch, or None if it is not built.

    Raises
    ------
    CaptureError
        If it is asked for by name and is not there, or does not load.
    """
    wanted = os.environ.get(VARIABLE, "")
    if wanted not in ("", "python", "native"):
        raise CaptureError(
            f"{VARIABLE} is python or native, not {wanted!r}: unset it to use the "
            "compiled hook where there is one"
        )
    if wanted == "python":
        return None
    name = _name()
    for folder in folders():
        path = folder / f"{name}.so"
        if path.exists():
            try:
                return cast(Native, _loaded(path))
            except ImportError as error:
                raise CaptureError(
                    f"the compiled hook {path} does not load ({error}): build it again "
                    f"with moetraffic build --force, or set {VARIABLE}=python"
                ) from None
    if wanted == "native":
        raise CaptureError(
            f"{VARIABLE} asks for the compiled hook, but none is built for torch "
            f"{torch.__version__}: run moetraffic build"
        )
    return None


def folders() -> tuple[Path, ...]:
    """Folders of the compiled hook, in order of preference."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(sys.prefix) / "share" / "moetraffic", Path(cache) / "moetraffic"


def build(*, force: bool = False) -> tuple[Path, bool]:
    """Compile the hook for this torch and this Python.

    Parameters
    ----------
    force
        Compile though it is there already.

    Returns
    -------
    tuple
        Where it lies, and whether it was compiled now.

    Raises
    ------
    CaptureError
        If there is no compiler, it fails, or nothing can be written.
    """
    name = _name()
    for folder in folders():
        if (folder / f"{name}.so").exists() and not force:
            return folder / f"{name}.so", False
    _refuse_without_tools()
    into = _writable()
    # heavy, and needed here alone
    from torch.utils import cpp_extension

    with tempfile.TemporaryDirectory(dir=into) as work:
        try:
            cpp_extension.load(
                name,
                [str(SOURCE)],
                extra_cflags=["-O2", "-fvisibility=hidden"],
                build_directory=work,
                is_python_module=False,
            )
        except (RuntimeError, OSError) as error:
            told = [line for line in str(error).splitlines() if "error" in line]
            raise CaptureError(
                "the hook does not compile against torch "
                f"{torch.__version__} ({(told or [str(error)])[0].strip()[:300]}): "
                "capture goes on with the hook in Python"
            ) from None
        # whole or not at all: another rank may look for it now
        os.replace(Path(work) / f"{name}.so", into / f"{name}.so")
    return into / f"{name}.so", True


def _name() -> str:
    about = [
        SOURCE.read_bytes(),
        *(path.read_bytes() for path in INCLUDED),
        torch.__version__.encode(),
        (sysconfig.get_config_var("SOABI") or sys.version).encode(),
        platform.machine().encode(),
    ]
    return f"moetraffic_hook_{hashlib.sha256(b'|'.join(about)).hexdigest()[:16]}"


@lru_cache(maxsize=1)
def _loaded(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"no loader for {path.suffix}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _refuse_without_tools() -> None:
    compiler = os.environ.get("CXX", "c++")
    for tool, package in ((compiler, "a C++ compiler such as g++"), ("ninja", "ninja")):
        if shutil.which(tool) is None:
            raise CaptureError(
                f"compiling the hook needs {package}, but there is no {tool!r} on the "
                "PATH: install it, or capture with the hook in Python"
            )


def _writable() -> Path:
    for folder in folders():
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue  # the next one is there for this
        if os.access(folder, os.W_OK):
            return folder
    raise CaptureError(
        "the compiled hook needs a folder to lie in, but none of "
        f"{', '.join(map(str, folders()))} can be written: make one writable"
    )
