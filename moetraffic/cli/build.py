"""``moetraffic build``: compile the hook that captures."""

from __future__ import annotations

from typing import Annotated

import typer

from .output import console, print_json


def build(
    force: Annotated[bool, typer.Option(help="Compile though it is there.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compile the capture hook: a recorded collective costs microseconds less.

    Once for each torch and each Python; about a minute, with a C++ compiler and ninja.
    Captures of this environment use it from then on (MOETRAFFIC_HOOK=python: not).

    Example: moetraffic build
    """
    # torch takes a second to import
    from moetraffic.capture.hook import native

    if not as_json:
        console.print("compiling the hook, which takes about a minute ...")
    path, made = native.build(force=force)
    if as_json:
        print_json({"path": str(path), "compiled": made})
        return
    said = "compiled" if made else "there already (--force compiles it again)"
    console.print(f"{path}: {said}", soft_wrap=True, highlight=False)
