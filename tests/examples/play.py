"""Run examples on several ranks: imports once for all of them, then a fork a rank.

``python play.py FOLDER RANKS EXAMPLE.py ...`` leaves their traces in the folder, and
what each rank said.
"""

from __future__ import annotations

import importlib.util
import os
import socket
import sys
from pathlib import Path
from types import ModuleType

importlib.import_module(
    "torch._dynamo"
)  # optimizers import it: once here, not in every rank


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main(folder: Path, ranks: int, examples: list[Path]) -> int:
    """Play the examples one after another; how many failed."""
    sys.path.insert(0, str(examples[0].parent))
    failed = 0
    for example in examples:
        spec = importlib.util.spec_from_file_location(example.stem, example)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        codes = play(module, folder, ranks)
        failed += any(codes)
    return failed


def play(module: ModuleType, folder: Path, ranks: int) -> list[int]:
    """The exit codes of the ranks of one example; what they say goes into a file."""
    os.environ |= {
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "LOCAL_WORLD_SIZE": str(ranks),
    }
    name = module.__name__
    sys.argv = [name, "--output", str(folder / f"{name}.h5")]
    children = []
    for rank in range(ranks):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
                log = os.open(folder / f"{name}-{rank}.txt", os.O_WRONLY | os.O_CREAT)
                os.dup2(log, 1)
                os.dup2(log, 2)
                module.main()
                code = 0
            except BaseException:
                sys.excepthook(*sys.exc_info())
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        children.append(child)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), [*map(Path, sys.argv[3:])]))
