"""Build and load the compiled dispatcher hook, which records calls without Python.

Entering and leaving a dispatcher kernel written in Python takes 10 to 40 us per call; a
compiled kernel takes about 1 us.  It is compiled once per version of torch and Python,
and stored in the Python environment of torch or, if that is not writable, in the user's
cache; the name of the library identifies torch, Python and the source, so that an
outdated library is never loaded.  Its functions are described at the end of its source.
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
from collections.abc import Callable
from functools import lru_cache
from importlib.machinery import ExtensionFileLoader
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

from moetraffic.errors import CaptureError
from moetraffic.user_cache import user_cache

SOURCE = Path(__file__).with_name("native.cpp")
VARIABLE = "MOETRAFFIC_HOOK"
"""Environment variable: ``python`` disables, ``native`` requires the compiled hook."""


def load() -> ModuleType | None:
    """Load the compiled hook for this version of torch, or None if it is not built."""
    wanted = os.environ.get(VARIABLE, "")
    if wanted not in ("", "python", "native"):
        raise CaptureError(f"{VARIABLE} is python or native, not {wanted!r}: unset it")
    library = None if wanted == "python" else _built()
    if library is None:
        if wanted == "native":
            raise CaptureError(
                f"{VARIABLE} asks for the compiled hook, but none is built for torch "
                f"{version('torch')}: run moetraffic build"
            )
        return None
    try:
        return _loaded(library)
    except ImportError as error:
        raise CaptureError(
            f"the compiled hook {library} does not load ({error}): build it again "
            f"with moetraffic build --force, or set {VARIABLE}=python"
        ) from None


def build_if_possible(say: Callable[[str], None]) -> None:
    """Compile the hook if none is built and the tools are there; never raise."""
    try:
        wanted = os.environ.get(VARIABLE) != "python"
        if wanted and _built() is None and not _missing_tool():
            say("compiling the hook, once for this torch (about 30 s)")
            build()
    except Exception as error:
        say(str(error))  # the hook in Python records the same


def build(*, force: bool = False) -> tuple[Path, bool]:
    """Compile the dispatcher hook for this version of torch and Python.

    With ``force`` also if the library exists.  Returns the path of the library, and
    whether it was compiled by this call.
    """
    library = _built()
    if library is not None and not force:
        return library, False
    if tool := _missing_tool():
        raise CaptureError(
            f"compiling the hook needs a C++ compiler and ninja, but {tool} is not on "
            "the PATH: install it, or capture with the hook in Python"
        )
    folder, name = _writable_folder(), _name()
    # imported here because the import is slow and only needed for compilation
    from torch.utils import cpp_extension

    with tempfile.TemporaryDirectory(dir=folder) as work:
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
                f"{version('torch')} ({(lines or [str(error)])[0].strip()[:300]}): "
                "capture goes on with the hook in Python"
            ) from None
        # atomic, because another process may load the library at the same time
        library = folder / f"{name}.so"
        os.replace(Path(work) / library.name, library)
    return library, True


def folders() -> tuple[Path, ...]:
    """Return the folders of the compiled hook, in order of preference."""
    cache, own = user_cache(), Path(sys.prefix) / "share" / "moetraffic"
    return (own,) if cache is None else (own, cache)


def _name() -> str:
    python = sysconfig.get_config_var("SOABI") or sys.version
    about = f"{SOURCE.read_text()}|{version('torch')}|{python}|{platform.machine()}"
    return f"moetraffic_hook_{hashlib.sha256(about.encode()).hexdigest()[:16]}"


def _built() -> Path | None:
    paths = [folder / f"{_name()}.so" for folder in folders()]
    return next((p for p in paths if p.exists() and not _is_noexec(p.parent)), None)


@lru_cache(maxsize=1)
def _loaded(path: Path) -> ModuleType:
    loader = ExtensionFileLoader(path.stem, str(path))
    spec = importlib.util.spec_from_loader(path.stem, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def _missing_tool() -> str:
    tools = (os.environ.get("CXX", "c++"), "ninja")
    return next((tool for tool in tools if shutil.which(tool) is None), "")


def _is_noexec(folder: Path) -> bool:
    """Whether libraries in a folder cannot be loaded, for its mount forbids it."""
    return bool(os.statvfs(folder).f_flag & os.ST_NOEXEC)


def _writable_folder() -> Path:
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
