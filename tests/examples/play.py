"""Run an example on several ranks: its imports once, then a fork a rank.

``python play.py EXAMPLE.py RANKS FOLDER`` leaves the trace in the folder.
"""

from __future__ import annotations

import importlib.util
import os
import socket
import sys
from pathlib import Path

importlib.import_module(
    "torch._dynamo"
)  # optimizers import it: once here, not in every rank


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main(example: Path, ranks: int, folder: Path) -> int:
    sys.path.insert(0, str(example.parent))
    os.environ |= {
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "LOCAL_WORLD_SIZE": str(ranks),
    }
    spec = importlib.util.spec_from_file_location(example.stem, example)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.argv = [str(example), "--output", str(folder / f"{example.stem}.h5")]
    children = []
    for rank in range(ranks):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
                module.main()
                code = 0
            except BaseException:
                sys.excepthook(*sys.exc_info())
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    return max(abs(code) for code in codes)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])))
