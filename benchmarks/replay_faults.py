"""Break replays on purpose, and count what comes of it.

Every run replays a small trace and has one fault, drawn from a seed: its kind, its
rank, the operation at which it strikes, the number of ranks, how much is verified, and
who starts the ranks: ``moetraffic replay --nproc``, torchrun, or nobody but the shell
(as under srun).  A run ends *clearly* if it ends by itself within the deadline, with
the exit code of an error and a sentence that names the rank and the operation of the
fault; whatever was kept of a finished replay must open.  Afterwards no process of the
run may be left.

    python benchmarks/replay_faults.py --runs 100 --seed 0

prints a table; ``--json FILE`` has every run.  The exit code is 1 if a run did not end
clearly.  What arms a rank is beside this file.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import faulty_rank
import numpy as np
from faulty_rank import CODES, FAULT, FAULTS, Fault
from page import save

TIMEOUT_S = 3.0
DEADLINE_S = 90.0
"""Longest time of a run; more is a hang."""

ITERATIONS, LAYERS = 4, 2


@dataclass(frozen=True, kw_only=True)
class Ending:
    """What came of it."""

    fault: Fault
    clear: bool
    hung: bool
    left: int  # processes
    seconds: float
    code: int
    expected: str  # that the sentence had to match
    said: str


# ---- the campaign ----------------------------------------------------------------


def draw(seed: int, number: int) -> Fault:
    """The fault of a run."""
    random = np.random.default_rng([seed, number])
    weights = np.array([k.weight for k in FAULTS.values()])
    name = str(random.choice(list(FAULTS), p=weights / weights.sum()))
    kind = FAULTS[name]
    share = {"replay": 0.6, "torchrun": 0.2, "shell": 0.2}
    odds = np.array([share[launcher] for launcher in kind.launchers])
    ranks = int(random.integers(3 if kind.and_above else 2, 9))
    first = 1 if kind.and_above else 0  # not all ranks have it
    passes = int(random.integers(1, 3))
    operations = ITERATIONS * LAYERS * 3
    ends = (signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT)
    return Fault(
        run=f"{seed}-{number}-{os.getpid()}",
        kind=name,
        launcher=str(random.choice(kind.launchers, p=odds / odds.sum())),
        ranks=ranks,
        rank=int(random.integers(first, ranks)) if kind.rank is None else kind.rank,
        operation=int(random.integers(passes * operations)),
        verify=("none", "full")[passes - 1],
        number=int(random.choice(ends)),
        options=kind.options[int(random.integers(len(kind.options)))],
    )


def expected(fault: Fault, trace: Path) -> str:
    """What the sentence must match."""
    from moetraffic.replay.options import Options
    from moetraffic.replay.plan.program import program
    from moetraffic.replay.run import counted_name, planned
    from moetraffic.trace.trace import Trace

    kind = FAULTS[fault.kind]
    if not kind.named:
        return kind.said
    place, rank = kind.place, fault.rank
    absent = fault.kind in ("not started", "late start")
    if absent and (rank, fault.launcher) == (0, "shell"):
        return "cannot reach rank 0 at"  # it serves the rendezvous
    if kind.and_above and 2 * rank < fault.ranks:
        rank = 0  # the lowest of the fewer
    if kind.agreed and fault.ranks == 2:
        rank = 1  # neither are the fewer
    if not place:
        with Trace.open(trace) as opened:
            options = Options(trace=trace, verify=fault.verify)
            replayed, plan = planned(options, opened)
            own = program(replayed, plan, fault.rank)
        place = re.escape(counted_name(options, plan, own, fault.operation))
    return rf"rank {rank} at {place}.*({kind.said})"


def run(fault: Fault, folder: Path) -> Ending:
    """One replay with one fault."""
    trace = folder / str(fault.ranks) / "trace.h5"
    out = folder / "out" / f"{fault.run}.h5"
    pattern = expected(fault, trace)
    environment = {
        **os.environ,
        FAULT: json.dumps(asdict(fault)),
        "PYTHONPATH": os.pathsep.join(
            [str(folder / "armed"), str(Path(__file__).parents[1])]
        ),
        "TMPDIR": str(folder / "kept"),
        "OMP_NUM_THREADS": "1",
    }
    options = [str(trace), "-o", str(out), "--verify", fault.verify]
    kind = FAULTS[fault.kind]
    options += ["--timeout", str(TIMEOUT_S), *fault.options]
    options += ["--start-timeout", str(kind.start_timeout_s)]
    began_s = time.monotonic()
    with taken(fault) as port, (folder / "said").open("w+") as said:
        programs = [
            subprocess.Popen(
                command,
                env=environment | own,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=said,
                start_new_session=True,
            )
            for command, own in commands(fault, options, port)
        ]
        try:
            until_s = began_s + DEADLINE_S
            while any(p.poll() is None for p in programs):
                if time.monotonic() > until_s:
                    break
                time.sleep(0.02)
            hung = any(p.poll() is None for p in programs)
            seconds = time.monotonic() - began_s
            settle_s = time.monotonic() + 1.0
            left = list(alive(fault.run))
            while left and not hung and time.monotonic() < settle_s:
                time.sleep(0.05)  # killed, but not yet gone
                left = list(alive(fault.run))
        finally:  # Ctrl-C reaches no process of the run: they have their own sessions
            for pid in alive(fault.run):
                os.kill(pid, signal.SIGKILL)
            for program in programs:
                program.wait()
        said.seek(0)
        text = said.read()
    code = max((p.returncode for p in programs), key=lambda c: (c == 2, c != 0))
    sentences = [s for s in text.splitlines() if s.startswith("moetraffic: ")]
    clear = any(re.search(pattern, sentence) for sentence in sentences)
    wrong_code = code != CODES.get(fault.launcher, kind.code)
    return Ending(
        fault=fault,
        clear=clear and not wrong_code and not hung and kept(fault, sentences, folder),
        hung=hung,
        left=len(left),
        seconds=round(seconds, 2),
        code=code,
        expected=pattern,
        said="\n".join(sentences) or text[-2000:],
    )


def commands(
    fault: Fault, options: list[str], port: int
) -> Iterator[tuple[list[str], dict[str, str]]]:
    """The programs of a run, each with its own environment."""
    replay = ["-m", "moetraffic.replay", *options]
    if fault.launcher == "replay":
        yield [sys.executable, *replay, "--nproc", str(fault.ranks)], {}
    elif fault.launcher == "torchrun":
        torchrun = [sys.executable, "-m", "torch.distributed.run"]
        torchrun += ["--nproc-per-node", str(fault.ranks), "--master-port", str(port)]
        yield [*torchrun, *replay], {}
    else:
        for rank in range(fault.ranks):
            if fault.kind == "not started" and rank == fault.rank:
                continue
            yield (
                [sys.executable, *replay],
                {
                    "RANK": str(rank),
                    "LOCAL_RANK": str(rank),
                    "WORLD_SIZE": str(fault.ranks),
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": str(port),
                },
            )


class taken:
    """A port for the run: free, or with another program behind it."""

    def __init__(self, fault: Fault):
        self._occupied = fault.kind == "port in use"
        self._socket = socket.socket()

    def __enter__(self) -> int:
        self._socket.bind(("", 0))
        port = int(self._socket.getsockname()[1])
        if self._occupied:
            self._socket.listen()
        else:
            self._socket.close()
        return port

    def __exit__(self, *_: object) -> None:
        self._socket.close()


def kept(fault: Fault, sentences: list[str], folder: Path) -> bool:
    """Whether a finished replay whose output failed is kept, with its times."""
    if fault.kind != "full disk":
        return True
    from moetraffic.trace.trace import Trace

    found = re.search(r"is kept as (\S+\.h5)", "\n".join(sentences))
    if found is None:
        return False
    with Trace.open(Path(found[1])) as trace:
        chosen = trace.find(operation="all_to_all")
        known = all((panel >= 0).all() for panel in trace.times(chosen[:1]))
    Path(found[1]).unlink()
    return bool(len(chosen)) and known


def alive(run: str) -> Iterator[int]:
    """Processes of a run, by the mark in their environment."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            mark = f'"run": "{run}"'.encode() in (entry / "environ").read_bytes()
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue  # gone meanwhile, or another user's
        if mark and state not in "ZX" and int(entry.name) != os.getpid():
            yield int(entry.name)


def prepare(folder: Path) -> None:
    """Traces for each number of ranks, and the code that arms ranks."""
    for name in ("armed", "out", "kept"):
        (folder / name).mkdir()
    (folder / "armed" / "sitecustomize.py").write_text(
        "import importlib.util\n"
        f"path = {faulty_rank.__file__!r}\n"
        "spec = importlib.util.spec_from_file_location('faults', path)\n"
        "faults = importlib.util.module_from_spec(spec)\n"
        "import sys; sys.modules['faults'] = faults\n"
        "spec.loader.exec_module(faults)\n"
        "faults.arm()\n"
    )
    for ranks in range(2, 9):
        place = folder / str(ranks)
        place.mkdir()
        for name, seed, late_ns in (
            ("trace", 0, 0),
            ("other", 1, 0),
            ("times", 0, 5_000),
        ):
            small_trace(ranks, seed, late_ns).save(place / f"{name}.h5")
        whole = (place / "trace.h5").read_bytes()
        (place / "damaged.h5").write_bytes(whole[: len(whole) // 2])


def small_trace(ranks: int, seed: int, late_ns: int) -> Any:
    """Dispatch, combine and counts of two layers, with random bytes.

    Rank 1 issues its operations ``late_ns`` later than the others.
    """
    from moetraffic.trace.model import Group, Meta, Occurrences, Site, Steps
    from moetraffic.trace.panel import ArrayPanel
    from moetraffic.trace.routed import blank_panels
    from moetraffic.trace.trace import Trace

    names = [
        (layer, phase)
        for layer in range(LAYERS)
        for phase in ("", "dispatch", "combine")
    ]
    sites = [
        Site(
            group=0,
            operation="all_to_all",
            phase=phase,
            label="" if phase else "count_exchange",
            layer=layer,
            dtype="float32",
            row_bytes=1,
        )
        for layer, phase in names
    ]
    count = ITERATIONS * len(sites)
    when = np.tile(np.arange(ITERATIONS), len(sites))
    site = np.repeat(np.arange(len(sites), dtype=np.int32), ITERATIONS)
    issue = (1_000 * when + site)[:, None] * np.full(ranks, 1_000)
    issue[:, 1] += late_ns
    random = np.random.default_rng(seed)
    groups = [Group(kind="ep", ranks=tuple(range(ranks)))]
    call = f"call_{ranks}"
    return Trace(
        meta=Meta(world=ranks, dp=ranks, layers=LAYERS),
        groups=groups,
        sites=sites,
        occurrences=Occurrences(
            iteration=when,
            site=site,
            sequence=np.full(count, -1, np.int64),
            matrix=np.arange(count),
            transposed=np.zeros(count, bool),
        ),
        panels=blank_panels(groups, sites, site)
        | {
            f"{call}/issue": ArrayPanel(issue),
            f"{call}/start": ArrayPanel(issue + 10),
            f"{call}/end": ArrayPanel(issue + 20),
            f"{call}/wire": ArrayPanel(
                random.integers(8, 20_000, (count, ranks, ranks), dtype=np.int64)
            ),
        },
        steps=replace(
            Steps.of_training(np.arange(ITERATIONS), ranks, tokens=0),
            start=np.zeros((ITERATIONS, ranks), np.int64),
            end=np.ones((ITERATIONS, ranks), np.int64),
        ),
    )


def campaign(runs: int, seed: int, first: int = 0) -> Generator[Ending, None, None]:
    """Run after run; nothing of them is left on the disk."""
    folder = Path(tempfile.mkdtemp(prefix="moetraffic-faults-"))
    try:
        prepare(folder)
        for number in range(first, first + runs):
            yield run(draw(seed, number), folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    """Run the campaign and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first run")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    asked = parser.parse_args()
    endings: list[Ending] = []
    runs = campaign(asked.runs, asked.seed, asked.first)
    try:
        for ending in runs:
            endings.append(ending)
            if asked.json:
                save(asked.json, [asdict(one) for one in endings])
            if not ending.clear or ending.left:
                print(json.dumps(asdict(ending), indent=1), file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        runs.close()
        print(f"interrupted after {len(endings)} of {asked.runs} runs", file=sys.stderr)
        return 130
    print(f"{'fault':16}{'launcher':10}{'runs':>5}{'clear':>6}{'longest, s':>12}")
    for kind, launcher in sorted({(e.fault.kind, e.fault.launcher) for e in endings}):
        same = [
            e for e in endings if (e.fault.kind, e.fault.launcher) == (kind, launcher)
        ]
        clear, longest = sum(e.clear for e in same), max(e.seconds for e in same)
        print(f"{kind:16}{launcher:10}{len(same):5}{clear:6}{longest:12.1f}")
    clear, hung = sum(e.clear for e in endings), sum(e.hung for e in endings)
    left = sum(e.left for e in endings)
    print(
        f"{len(endings)} runs, seed {asked.seed}: {clear} clear endings, {hung} "
        f"hangs, {left} processes left"
    )
    return 0 if all(e.clear and not e.left for e in endings) else 1


if __name__ == "__main__":
    sys.exit(main())
