"""``moetraffic build``: compile the hook that captures."""

from __future__ import annotations

import signal

from moetraffic.cli.output import console, present
from moetraffic.report.console.options import AsJson, option


def build(
    force: bool = option(False, "Compile though it is compiled.", "--force"),
    as_json: AsJson = False,
) -> None:
    """Compile the capture hook in C++, which records a collective microseconds faster.

    Once for each version of torch and Python; it takes about a minute and needs a C++
    compiler and ninja. Captures use it from then on, unless MOETRAFFIC_HOOK=python.

    Example: moetraffic build
    """
    # torch takes a second to import
    from moetraffic.capture.hook import native

    # launchers end it so: what is half compiled is removed
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if not as_json:
        console.print("compiling the hook, which takes about a minute ...")
    path, made = native.build(force=force)
    state = "compiled" if made else "already compiled (--force compiles it again)"
    data = {"path": str(path), "compiled": made}
    present(data, f"{path}: {state}", as_json=as_json)
