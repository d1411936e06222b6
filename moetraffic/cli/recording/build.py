"""``moetraffic build``: compile the hook that captures."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path

from moetraffic.cli.output import console, present
from moetraffic.errors import install_command
from moetraffic.report.console.options import AsJson, option
from moetraffic.report.console.terminal import announce
from moetraffic.user_cache import user_cache

OFFERED = "build-offered"
"""File in the user's cache that marks the suggestion as made."""


def build(
    force: bool = option(False, "Compile though it is compiled."),
    as_json: AsJson = False,
) -> None:
    """Compile the capture hook in C++, which records a collective microseconds faster.

    Once for each version of torch and Python; it takes about a minute and needs a C++
    compiler and ninja. Captures use it from then on, unless MOETRAFFIC_HOOK=python.

    Example: moetraffic build
    """
    # torch takes a second to import
    from moetraffic.capture.hook import native

    # the demo and launchers end it so: what is half compiled is removed
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if not as_json:
        console.print("compiling the hook, which takes about a minute ...")
    path, made = native.build(force=force)
    state = "compiled" if made else "already compiled (--force compiles it again)"
    data = {"path": str(path), "compiled": made}
    present(data, f"{path}: {state}", as_json=as_json)


def offer() -> None:
    """Suggest the compiled hook after a capture in a terminal, once per user.

    Nothing is printed where it is built, disabled, or cannot be built.
    """
    cache = user_cache()
    tools = os.environ.get("CXX", "c++"), "ninja"
    if (
        cache is None
        or not sys.stderr.isatty()
        or os.environ.get("MOETRAFFIC_HOOK")
        or shutil.which(tools[0]) is None
    ):
        return
    # the folders of capture.hook.native, which imports torch for seconds
    for folder in (Path(sys.prefix) / "share" / "moetraffic", cache):
        if any(folder.glob("moetraffic_hook_*.so")):
            return
    try:
        cache.mkdir(parents=True, exist_ok=True)
        (cache / OFFERED).touch(exist_ok=False)
    except OSError:
        return  # offered before, or it cannot be noted that it was
    ninja = "" if shutil.which(tools[1]) else f"{install_command('hook')}, then "
    announce(
        "this capture used the hook in Python; the compiled hook has a "
        f"lower overhead per collective: {ninja}moetraffic build"
    )
