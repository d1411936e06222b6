"""Copy a shipped run to a file, or list the shipped runs.

python -m moetraffic.data                                  # their names
python -m moetraffic.data top2-balanced top2-balanced.h5   # a copy of one
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from moetraffic.spelling import nearest

from . import path, runs


def main() -> int:
    """Copy the run that the command line names; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m moetraffic.data",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", nargs="?", help="a run; without one, all are listed")
    parser.add_argument("output", nargs="?", type=Path, help="file to write")
    parser.add_argument("--force", action="store_true", help="overwrite the file")
    asked = parser.parse_args()
    if asked.name is None:
        print("\n".join(runs()))
        return 0
    if asked.name not in runs():
        print(
            f"moetraffic: a shipped run is one of {', '.join(runs())}, not "
            f"{asked.name!r}: {nearest(asked.name, runs())}choose one",
            file=sys.stderr,
        )
        return 2
    target = asked.output or Path(f"{asked.name}.h5")
    if target.exists() and not asked.force:
        print(
            f"moetraffic: {target} exists: give --force to overwrite it, or another "
            "name",
            file=sys.stderr,
        )
        return 2
    try:
        shutil.copyfile(path(f"run-{asked.name}.h5"), target)
    except OSError as error:
        print(
            f"moetraffic: {target} cannot be written ({error.strerror}): choose "
            "another name",
            file=sys.stderr,
        )
        return 2
    print(f"written: {target}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
