"""Capture training runs, their reruns and runs of other seeds, at drawn settings.

A rerun has the initialization of its run and other data (``capture --data-seed``).
How far reruns are apart is what a synthetic trace is judged by
(``benchmarks/synthetic.py``)::

    python benchmarks/reruns.py capture --folder reruns
    python benchmarks/reruns.py capture --folder reruns --share dev   # a part of them
    python benchmarks/reruns.py capture --folder reruns --scale 4     # of 4 x the ranks

Settings are drawn when it runs, from ``os.urandom``, and written to ``settings.json``
before the first capture.  Half of them are ``final``: nothing may be fitted to these or
looked at before the form of a generator is fixed.  A capture is a process of its own;
whole files are kept, so that an interrupted run goes on where it ended, and several
processes may work on one folder.

``--scale`` captures the runs and reruns of the settings with at most 8 ranks again,
with more ranks of as many tokens each, into a folder of its own (``reruns/x4``).

Expert choice is left out: each expert takes as many tokens of every rank, so its token
counts are constant and have no statistics.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from moetraffic.patterns import Gating, Layout, ModelShape, Training, Workload

ITERATIONS = 300
"""Recorded iterations of a capture."""
TOKENS = 2_048
"""Most tokens of all ranks in an iteration."""
RERUNS = 6
OTHER_SEEDS = 2
SCALED_RANKS = 8
"""Most ranks of a setting that is captured with more of them."""

ROUTERS = ("switch", "topk", "loss-free", "groups")
PERIODS = ("early", "late", "whole")
"""``early``: the first half of a training of 600 iterations; ``late``: its second half;
``whole``: a training of 300."""
CORPORA = ("python", "headers")
"""Text to train on: Python's standard library, or the C++ headers of torch."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What is trained; a seed and a data seed make a capture of it."""

    name: str  # dev00, final00 ...
    router: str  # one of ROUTERS
    options: dict[str, Any]  # of the router
    k: int
    balance: float  # weight of the load-balancing loss
    experts: int
    layers: int
    hidden: int
    ranks: int
    ep: int
    sequence: int
    micro_batch: int
    learning_rate: float
    corpus: str  # one of CORPORA
    period: str  # one of PERIODS
    seeds: tuple[int, ...]  # of the run and of the other seeds
    data_seeds: tuple[int, ...]  # of the reruns

    @property
    def cost(self) -> int:
        """Cost of a capture: its matrix products, and token copies over 16."""
        iterations = ITERATIONS if self.period != "late" else 2 * ITERATIONS
        copies = self.ranks * self.sequence * self.micro_batch * self.k
        return iterations * self.layers * (self.experts + self.ranks + copies // 16)

    def captures(self) -> dict[str, tuple[int, int | None]]:
        """Seed and data seed of each capture, by the end of its name."""
        run, *others = self.seeds
        return {
            "run": (run, None),
            **{f"rerun{n}": (run, data) for n, data in enumerate(self.data_seeds, 1)},
            **{f"seed{n}": (seed, None) for n, seed in enumerate(others, 1)},
        }


def drawn(base: int, settings: int) -> list[Setting]:
    """Draw settings; each half has every router, period and corpus equally often."""
    draws = np.random.default_rng(base)
    halves = []
    for share in ("dev", "final"):
        count = (settings + (share == "dev")) // 2
        routers, periods, corpora = (
            [*draws.permutation(np.resize(values, count)).tolist()]
            for values in (
                draws.permutation(ROUTERS),
                draws.permutation(PERIODS),
                CORPORA,
            )
        )
        halves.append(
            [
                _setting(draws, f"{share}{n:02d}", *parts)
                for n, parts in enumerate(zip(routers, periods, corpora, strict=True))
            ]
        )
    return [*halves[0], *halves[1]]


def _setting(
    draws: np.random.Generator, name: str, router: str, period: str, corpus: str
) -> Setting:
    experts = int(draws.choice([8, 12, 16, 24, 32, 48, 64]))
    k = (
        1
        if router == "switch"
        else int(draws.integers(1, min(8, experts // 2 - 1) + 1))
    )
    # ranks that allow at least 32 tokens each, and a group of at least 4 of them
    ranks = int(draws.choice([4, 8, 16, 32, 64]))
    ep = int(
        draws.choice([n for n in (4, 8, 16, 32, 64) if ranks % n == experts % n == 0])
    )
    tokens = int(
        draws.choice([t for t in (32, 64, 128, 256, 512) if t * ranks <= TOKENS])
    )
    sequence = min(64, tokens)
    options: dict[str, Any] = {}
    if router in ("loss-free", "groups"):
        options["bias_rate"] = float(draws.choice([0.001, 0.003, 0.01]))
    if router == "groups":
        choices = [
            (groups, top)
            for groups in (2, 4, 8)
            for top in range(1, groups)
            if experts % groups == 0
            and top * experts // groups >= k
            and experts // groups >= 2
        ]
        groups, top = choices[int(draws.integers(len(choices)))]
        options |= {"groups": groups, "top_groups": top}
    losses = {"switch": [0.01, 0.1], "topk": [0.0, 0.01]}.get(router, [0.0])
    seeds = draws.choice(1 << 30, 1 + OTHER_SEEDS + RERUNS, replace=False).tolist()
    return Setting(
        name=name,
        router=router,
        options=options,
        k=k,
        balance=float(draws.choice(losses)),
        experts=experts,
        layers=int(draws.integers(2, 9)),
        hidden=int(draws.choice([32, 48, 64])),
        ranks=ranks,
        ep=ep,
        sequence=sequence,
        micro_batch=tokens // sequence,
        learning_rate=round(float(np.exp(draws.uniform(*np.log([5e-4, 5e-3])))), 5),
        corpus=corpus,
        period=period,
        seeds=tuple(seeds[: 1 + OTHER_SEEDS]),
        data_seeds=tuple(seeds[1 + OTHER_SEEDS :]),
    )


def settings_of(folder: Path, count: int | None = None) -> list[Setting]:
    """Read the settings of a folder, or draw and write ``count`` of them."""
    path = folder / "settings.json"
    if not path.exists():
        if count is None:
            raise SystemExit(f"{path} does not exist: run benchmarks/reruns.py capture")
        base = int.from_bytes(os.urandom(8), "big")
        made = [asdict(s) for s in drawn(base, count)]
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"base": base, "settings": made}, indent=1) + "\n")
        print(f"drew {count} settings from base {base}: {path}", flush=True)
    told = json.loads(path.read_text())["settings"]
    return [
        Setting(
            **{**s, "seeds": tuple(s["seeds"]), "data_seeds": tuple(s["data_seeds"])}
        )
        for s in told
    ]


def wanted(settings: list[Setting]) -> Iterator[tuple[Setting, str]]:
    """Captures in order: runs and reruns to develop with, other seeds, final settings.

    Of each part in the order drawn: the first whole sets are not the easiest.
    """
    dev = [s for s in settings if s.name.startswith("dev")]
    final = [s for s in settings if s.name.startswith("final")]
    for part in (dev, final):
        for seeds in (False, True):
            for setting in part:
                for name in setting.captures():
                    if name.startswith("seed") == seeds:
                        yield setting, name


def capture_all(folder: Path, count: int, share: str, scale: int, most: int) -> None:
    """Capture what a folder lacks, a process each; of cheap enough settings."""
    todo = [
        (s, name)
        for s, name in wanted(settings_of(folder, count))
        if share in s.name and s.cost <= most
    ]
    into = folder
    if scale > 1:
        into = folder / f"x{scale}"
        into.mkdir(exist_ok=True)
        todo = [
            (s, name)
            for s, name in todo
            if s.ranks <= SCALED_RANKS and not name.startswith("seed")
        ]
    for done, (setting, name) in enumerate(todo, 1):
        path = into / f"{setting.name}-{name}.h5"
        with claimed(path) as mine:
            if mine and not path.exists():
                spent = capture_one(folder, setting, name, scale, path)
                print(f"{done} of {len(todo)}: {path.name}, {spent:.0f} s", flush=True)


@contextmanager
def claimed(path: Path) -> Iterator[bool]:
    """Claim a capture among several processes, until this one ends."""
    lock = path.with_suffix(".lock")
    with lock.open("w") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        try:
            yield True
        finally:
            lock.unlink(missing_ok=True)


def capture_one(
    folder: Path, setting: Setting, name: str, scale: int, path: Path
) -> float:
    """Capture a run in a process of its own; return the time in seconds."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(dir=path.parent, prefix="partial-") as partial:
        part = Path(partial) / path.name
        told = [sys.executable, __file__, "one", "--folder", str(folder)]
        told += ["--setting", setting.name, "--capture", name]
        told += ["--scale", str(scale), "-o", str(part)]
        subprocess.run(told, check=True)
        part.replace(path)
    return time.perf_counter() - began


def workload(setting: Setting, seed: int, data_seed: int | None) -> Workload:
    """Describe a training of a setting."""
    own = {"loss-free": "deepseek", "groups": "deepseek"}
    return Workload(
        model=ModelShape(
            layers=setting.layers,
            hidden=setting.hidden,
            heads=2,
            sequence=setting.sequence,
            moe_every=1,
            experts=setting.experts,
        ),
        gating=Gating(
            router=own.get(setting.router, setting.router),
            k=setting.k,
            balance=setting.balance,
            options=setting.options,
        ),
        layout=Layout(dp=setting.ranks, ep=setting.ep),
        training=Training(
            iterations=ITERATIONS if setting.period == "whole" else 2 * ITERATIONS,
            micro_batch=setting.micro_batch,
            learning_rate=setting.learning_rate,
            seed=seed,
            data_seed=data_seed,
            virtual=True,
        ),
    )


def capture(setting: Setting, seed: int, data_seed: int | None, output: Path) -> None:
    """Train one run and record the iterations of the setting's period."""
    import torch

    from moetraffic.capture import VirtualRecorder
    from moetraffic.models.virtual_training import VirtualTraining

    torch.set_num_threads(1)
    where = str(Path(torch.__file__).parent / "include" / "torch" / "**" / "*.h")
    work = workload(setting, seed, data_seed)
    if setting.corpus == "headers":
        work = replace(work, training=replace(work.training, corpus=where))
    training = VirtualTraining(work)
    first = ITERATIONS if setting.period == "late" else 0
    for iteration in range(first):
        training.iterate(iteration)
    # the trace is complete with the iterations that are recorded
    recorded = replace(work, training=replace(work.training, iterations=ITERATIONS))
    with VirtualRecorder(output, workload=recorded) as recorder:
        for iteration in range(first, first + ITERATIONS):
            loss = training.iterate(iteration)
            recorder.step(loss=loss, tokens=training.tokens)


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parts = asked.add_subparsers(dest="part", required=True)
    every = parts.add_parser("capture", help="Draw settings and capture them.")
    one = parts.add_parser("one", help="Capture one run of a drawn setting.")
    for part in (every, one):
        part.add_argument("--folder", type=Path, default=Path("reruns"))
        part.add_argument("--scale", type=int, default=1)
    every.add_argument("--settings", type=int, default=12)
    every.add_argument("--share", choices=("dev", "final", ""), default="")
    every.add_argument("--most", type=int, default=sys.maxsize, help="Highest cost.")
    one.add_argument("--setting", required=True)
    one.add_argument("--capture", required=True)
    one.add_argument("-o", "--output", type=Path, required=True)
    told = asked.parse_args()
    if told.part == "capture":
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            capture_all(told.folder, told.settings, told.share, told.scale, told.most)
        except KeyboardInterrupt:
            raise SystemExit("interrupted: run it again to go on") from None
        return
    setting = next(s for s in settings_of(told.folder) if s.name == told.setting)
    setting = replace(setting, ranks=setting.ranks * told.scale)
    capture(setting, *setting.captures()[told.capture], told.output)


if __name__ == "__main__":
    main()
