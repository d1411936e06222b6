"""Capture into a place that gives way: ``python places.py FOLDER CASE``.

One rank trains by all-reducing; after its tenth step the case's misfortune comes.  The
training must reach its end; what it says of the capture is printed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from moetraffic.capture import Recorder
from moetraffic.errors import MoetrafficError

STEPS = 2000


def vanish(folder: Path) -> None:
    """Somebody removes the logs of a running capture."""
    shutil.rmtree(folder / "run.h5.logs")


def fill(folder: Path) -> None:
    """Something else fills the disk."""
    with contextlib.suppress(OSError), (folder / "other").open("wb", 0) as file:
        while True:
            file.write(os.urandom(4096))


def again(folder: Path) -> None:
    """Another capture begins in the same place."""
    second = subprocess.run(
        [sys.executable, __file__, folder, "calm"],
        capture_output=True,
        text=True,
        check=False,
    )
    sys.stdout.write("second: " + second.stdout)


CASES: dict[str, Callable[[Path], None]] = {
    "vanish": vanish,
    "fill": fill,
    "again": again,
    "calm": lambda _: None,
}


def main(folder: Path, case: str) -> None:
    logging.basicConfig(stream=sys.stdout, format="log: %(message)s")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    done = 0
    try:
        with Recorder(folder / "run.h5") as recorder:
            for step in range(STEPS):
                dist.all_reduce(torch.ones(1000 + step))
                recorder.step(loss=float(step))
                done += 1
                if step == 10:
                    CASES[case](folder)
    except MoetrafficError as error:
        sys.stdout.write(f"refused: {error}\n")
    finally:
        dist.destroy_process_group()
    sys.stdout.write(f"steps: {done}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
