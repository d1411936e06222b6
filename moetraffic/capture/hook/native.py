"""Build and load the compiled dispatcher hook, which records calls without Python.

Entering and leaving a dispatcher kernel written in Python takes 10 to 40 us per call; a
compiled kernel takes about 1 us.  ``moetraffic build`` compiles it once per version of
torch and Python.  Both kernels write the same records.

The library is stored in the Python environment of torch or, if that is not writable, in
the user's cache; its name identifies torch, Python and the source, so that an outdated
library is never loaded.

Its functions:

``install(operators, arrive, meet, number, before, launched, failed)``, ``uninstall()``
    Install or remove a kernel on each operator, given by name, index into
    :data:`.record_format.OPERATIONS`, and positions of the process group and of the
    input (-1 for none).  ``arrive(operation)`` returns the numbers of a new thread and
    of its context, and whether to call it again in the next call,
    ``meet(group)`` and ``number(kind, name)`` return those of a group, a dtype (given
    by a tensor) or an autograd node; the others are as in :class:`.python.CallSink`,
    called only for calls that are asynchronous or on a device.
``stand(place)``, ``mark()``
    Set the number of this thread's context; mark the position of a record made in
    Python among those of calls.
``wait(original, ended)``
    Return a method that calls ``original``, and then marks the thread's synchronous
    call as completed or, where there is none, calls ``ended(work)``.
``take()``, ``waiting()``
    Remove and return the records (bytes, None for a mark) and the number of lost calls;
    return the number of records that have not been taken.
``calls()``
    Return the number of recorded calls.
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

import torch

from moetraffic.errors import CaptureError
from moetraffic.user_cache import user_cache

SOURCE = Path(__file__).with_name("native.cpp")
INCLUDED = sorted(SOURCE.parent.glob("native_*.hpp"))
VARIABLE = "MOETRAFFIC_HOOK"
"""Environment variable: ``python`` disables, ``native`` requires the compiled hook."""


def load() -> ModuleType | None:
    """Load the compiled hook for this version of torch, or None if it is not built."""
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
        if path.exists() and not _is_noexec(folder):
            try:
                return _loaded(path)
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
    """Return the folders of the compiled hook, in order of preference."""
    cache = user_cache()
    own = Path(sys.prefix) / "share" / "moetraffic"
    return (own,) if cache is None else (own, cache)


def build(*, force: bool = False) -> tuple[Path, bool]:
    """Compile the dispatcher hook for this version of torch and Python.

    With ``force`` also if the library exists.  Returns the path of the library, and
    whether it was compiled by this call.
    """
    name = _name()
    for folder in folders():
        path = folder / f"{name}.so"
        if path.exists() and not (force or _is_noexec(folder)):
            return path, False
    _check_tools()
    into = _writable()
    # imported here because the import is slow and only needed for compilation
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
            lines = [line for line in str(error).splitlines() if "error" in line]
            raise CaptureError(
                "the hook does not compile against torch "
                f"{torch.__version__} ({(lines or [str(error)])[0].strip()[:300]}): "
                "capture goes on with the hook in Python"
            ) from None
        # atomic, because another rank may load the library at the same time
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
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _check_tools() -> None:
    compiler = os.environ.get("CXX", "c++")
    for tool, package in ((compiler, "a C++ compiler such as g++"), ("ninja", "ninja")):
        if shutil.which(tool) is None:
            raise CaptureError(
                f"compiling the hook needs {package}, but there is no {tool!r} on the "
                "PATH: install it, or capture with the hook in Python"
            )


def _is_noexec(folder: Path) -> bool:
    """Whether libraries in a folder cannot be loaded, for its mount forbids it."""
    return bool(os.statvfs(folder).f_flag & os.ST_NOEXEC)


def _writable() -> Path:
    for folder in folders():
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue  # try the next folder
        if os.access(folder, os.W_OK) and not _is_noexec(folder):
            return folder
    raise CaptureError(
        "the compiled hook needs a folder that permits executables, but none of "
        f"{', '.join(map(str, folders()))} can be written: set XDG_CACHE_HOME to a "
        "folder that you may write to"
    )
