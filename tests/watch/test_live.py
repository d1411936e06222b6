"""A run of two gloo ranks, watched from Python and on a terminal while it trains."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from moetraffic.analysis import analyze
from moetraffic.analysis.measures import max_mean
from moetraffic.cli import main
from moetraffic.data import path as shipped
from moetraffic.report.event_files import event_files
from moetraffic.trace import ROUTING, Trace
from moetraffic.trace.model import Source
from moetraffic.watch import Snapshot, watch_run

from .logs import routed, write_run

ROOT = Path(__file__).parents[2]
STEPS = 14

TRAIN = """
import sys, time
from pathlib import Path
import torch, torch.distributed as dist
from moetraffic import Recorder, capture

rank, folder = int(sys.argv[1]), Path(sys.argv[2])
torch.set_num_threads(1)
dist.init_process_group(
    "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2
)
generator = torch.Generator().manual_seed(rank)
shares = torch.tensor([0.4, 0.3, 0.2, 0.1])
with Recorder(folder / "run.h5", k=1) as recorder:
    for step in range(14):
        for layer in (1, 3):
            experts = torch.multinomial(shares, 200, True, generator=generator)
            counts = torch.bincount(experts, minlength=4)
            capture.routing(layer, counts)
            sent = counts.view(2, 2).sum(1)
            received = torch.empty_like(sent)
            dist.all_to_all_single(received, sent)
            arrived = torch.empty(int(received.sum()), 8)
            rows = torch.randn(200, 8)
            with capture.at(layer=layer, phase="dispatch"):
                dist.all_to_all_single(arrived, rows, received.tolist(), sent.tolist())
        recorder.step(loss=5.0 - step / 10, tokens=200)
        while step == 9 and not (folder / "go").exists():
            time.sleep(0.02)
dist.destroy_process_group()
"""


class Terminal:
    """A child of this process on a terminal of its own, which runs a command line."""

    def __init__(self, *arguments: object) -> None:
        self.text = b""
        self.pid, self._terminal = pty.fork()
        if self.pid == 0:
            code = 1
            try:
                os.environ |= {"TERM": "xterm", "COLUMNS": "160", "LINES": "50"}
                sys.stdout = os.fdopen(1, "w", encoding="utf-8")
                sys.stderr = os.fdopen(2, "w", encoding="utf-8")
                code = main([str(a) for a in arguments])
                sys.stdout.flush()
                sys.stderr.flush()
            finally:
                os._exit(code)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                part = os.read(self._terminal, 4096)
            except OSError:  # the child has ended
                return
            if not part:
                return
            self.text += part

    def until(self, seen: Callable[[bytes], bool]) -> None:
        deadline = time.monotonic() + 100
        while not seen(self.text):
            assert time.monotonic() < deadline, self.text[-2000:]
            time.sleep(0.02)

    def end(self) -> int:
        _, status = os.waitpid(self.pid, 0)
        self._reader.join(10)
        os.close(self._terminal)
        return os.waitstatus_to_exitcode(status)


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What was seen of the run."""

    path: Path
    snapshots: list[Snapshot]
    terminal: bytes
    code: int
    metrics: str  # while it ran


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    folder = tmp_path_factory.mktemp("live")
    path = folder / "run.h5"
    script = folder / "train.py"
    script.write_text(TRAIN)
    snapshots = []
    every = watch_run(path, last=6, interval_s=0.05)
    snapshots.append(next(every))  # before it begins
    terminal = Terminal(
        *("watch", path, "--interval", 0.1, "--metrics", folder / "run.prom"),
        *("--tensorboard", folder / "events", "--last", 8),
    )
    terminal.until(lambda text: b"waiting for the run to begin" in text)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "MOETRAFFIC_HOOK": "python"}
    ranks = [
        subprocess.Popen([sys.executable, script, str(r), folder], env=environment)
        for r in range(2)
    ]
    try:
        # the ranks wait in their tenth step
        deadline = time.monotonic() + 150
        while not len(snapshots[-1].iteration) or snapshots[-1].iteration[-1] < 7:
            assert time.monotonic() < deadline, snapshots[-1]
            snapshots.append(next(every))
        terminal.until(lambda text: b"recording" in text and b"noise floor" in text)
        metrics = (folder / "run.prom").read_text()
        (folder / "go").touch()
        snapshots += every
        code = terminal.end()
        assert [rank.wait(100) for rank in ranks] == [0, 0]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    return Seen(
        path=path,
        snapshots=snapshots,
        terminal=terminal.text,
        code=code,
        metrics=metrics,
    )


def test_the_run_is_seen_while_it_trains(seen: Seen) -> None:
    states = [s.state for s in seen.snapshots]
    assert states[0] == "waiting"
    assert states[-1] in ("closed", "merged")
    assert seen.snapshots[-1].iteration.tolist() == list(range(STEPS - 6, STEPS))
    running = [s for s in seen.snapshots if s.state == "recording" and len(s.iteration)]
    assert running
    assert all(s.world == 2 and s.ranks == (0, 1) for s in running)


def test_every_number_is_that_of_the_analysis_of_the_trace(seen: Seen) -> None:
    with Trace.open(seen.path) as trace:
        assert trace.meta.complete
        result = analyze(trace, parts=["evenness"])
        busiest = result.frame("measures").query(
            "subject == 'expert_load' and measure == 'max_mean'"
        )
        for snapshot in seen.snapshots:
            if not len(snapshot.iteration):
                continue
            rows = np.searchsorted(trace.iterations, snapshot.iteration)
            loss = 5.0 - snapshot.iteration / 10
            np.testing.assert_allclose(snapshot.loss, loss, rtol=1e-6)
            assert [each.layer for each in snapshot.layers if each.of] == [1, 3]
            total = np.zeros(len(rows))
            for each in snapshot.layers:
                sent = trace.find(operation="all_to_all", layer=each.layer)
                for row, step in enumerate(snapshot.iteration.tolist()):
                    mine = sent[trace.occurrences.iteration[sent] == step]
                    wire = sum(trace.wire(mine[i : i + 1]) for i in range(len(mine)))
                    assert each.bytes[row] == np.sum(wire)
                    assert each.local_bytes[row] == np.trace(np.asarray(wire)[0])
                total += each.bytes
                if not each.of:
                    continue  # the exchanges of counts
                curve = busiest[busiest.layer == each.layer].iloc[rows]
                np.testing.assert_array_equal(each.imbalance, curve.value)
                np.testing.assert_allclose(each.floor, curve.balanced, rtol=0.02)
                assert (each.floor_std > 0).all()
                assert each.hot[:1] == (0,)
                assert each.source == Source.ANNOTATED
                assert (each.dropped_share == 0).all()
                assert each.collapsed is False
                assert ((each.time_share > 0) & (each.time_share < 1)).all()
            np.testing.assert_array_equal(snapshot.bytes, total)
            known = snapshot.time_share
            assert ((known > 0) & (known <= 1)).all()


def test_a_terminal_refreshes_and_ends_with_the_run(seen: Seen) -> None:
    assert seen.code == 0, seen.terminal[-2000:]
    text = seen.terminal.decode()
    assert "\x1b[1A" in text or "\x1b[2K" in text  # drawn over what was there
    assert "2 of 2 seen" in text
    rest = text[text.rindex("state") :]
    assert "ended:" in rest
    assert "6 to 13 (8 steps)" in rest


def test_without_steps_no_event_file_is_written(tmp_path: Path) -> None:
    events = tmp_path / "events"
    event_files(events).close()
    assert not list(events.iterdir())


def test_prometheus_and_tensorboard_read_what_was_written(seen: Seen) -> None:
    families = {f.name: f for f in text_string_to_metric_families(seen.metrics)}
    one = families["moetraffic_watch_running"].samples[0]
    assert (one.value, one.labels) == (1.0, {"trace": "run.h5"})
    assert families["moetraffic_watch_iterations"].type == "counter"
    with Trace.open(seen.path) as trace:
        last = int(families["moetraffic_watch_iterations"].samples[0].value)
        found = families["moetraffic_watch_layer_imbalance_ratio"].samples
        assert {s.labels["layer"] for s in found} == {"1", "3"}
        copies = trace.demand(trace.find(operation=ROUTING, layer=3))
        values = max_mean(copies.sum(axis=1))
        want = values[max(0, last - 8) : last].mean()
        assert {s.labels["layer"]: s.value for s in found}["3"] == pytest.approx(want)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(seen.path.parent / "events"))
    events.Reload()
    scalars = {e.step: e.value for e in events.Scalars("imbalance/layer_003")}
    assert sorted(scalars) == list(range(STEPS))  # each step once
    np.testing.assert_allclose([scalars[n] for n in range(STEPS)], values, rtol=1e-6)
    assert {"loss", "step_time_s", "dropped_share/layer_001", "bytes/layer_003"} <= set(
        events.Tags()["scalars"]
    )
    images = events.Images("load")
    assert images[-1].step == STEPS - 1
    assert images[0].encoded_image_string.startswith(b"\x89PNG")


# ---- the command -------------------------------------------------------------------


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    path = tmp_path / "run.h5"
    write_run(path.with_name("run.h5.logs"), 6)
    return path


def test_once_prints_tables_lines_or_json(
    recording: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["watch", str(recording), "--once"]) == 0
    shown = capsys.readouterr().out
    assert "0 to 5 (6 steps)" in shown
    assert "noise floor" in shown
    assert "less than 10% of the mean load" in shown
    # the folder of logs is as good a name
    logs = str(recording) + ".logs"
    prom = tmp_path / "x.prom"
    command = ["watch", logs, "--once", "--json", "--metrics", str(prom)]
    assert main(command) == 0
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert (told["state"], told["iterations"]) == ("recording", list(range(6)))
    loads = [sum(routed(r, s, 1) for r in range(2) for s in range(6))]
    assert told["layers"][1]["load"] == loads[0].tolist()
    text = prom.read_text()
    assert 'rank_load_ratio{expert="0"' not in text
    assert 'moetraffic_watch_expert_load_ratio{expert="0",layer="1"' in text
    assert main(["watch", str(recording), "--once", "--layers", "1"]) == 0
    shown = capsys.readouterr().out
    assert "layer 1" in shown
    assert "x mean" in shown
    assert main(["watch", str(shipped("golden.h5"))]) == 0
    assert "the trace has been written" in capsys.readouterr().out


def test_a_log_has_a_line_per_interval(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    writers = write_run(tmp_path / "run.h5.logs", 6)
    monkeypatch.setattr(time, "sleep", lambda _: [w.close() for w in writers])
    assert main(["watch", str(tmp_path / "run.h5"), "--interval", "0.1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(
        "step 5, 2 of 2 ranks, iteration time 1 ms (median), largest max/mean of a step"
    )
    assert "all-to-all 49" in lines[0]
    assert "the merge is pending" in " ".join(lines)


def test_ctrl_c_leaves_the_last_tables(recording: Path) -> None:
    terminal = Terminal("watch", recording, "--interval", 0.1)
    terminal.until(lambda text: b"noise floor" in text)
    os.kill(terminal.pid, signal.SIGINT)
    assert terminal.end() == 130
    assert b"Traceback" not in terminal.text
    assert b"0 to 5 (6 steps)" in terminal.text[terminal.text.rindex(b"state") :]


def test_bad_input_is_one_sentence(
    recording: Path, capsys: pytest.CaptureFixture[str], monkeypatch, tmp_path: Path
) -> None:
    def refused(*arguments: object) -> str:
        assert main(["watch", *map(str, arguments)]) == 2
        said = capsys.readouterr().err
        assert said.startswith("moetraffic: ")
        assert said.count("\n") == 1
        return said

    assert "start the capture" in refused(tmp_path / "none.h5", "--once")
    assert "does not exist" in refused(tmp_path / "no" / "run.h5")
    assert "not of [7]" in refused(recording, "--once", "--layers", "7")
    assert "numbers" in refused(recording, "--layers", "x")
    assert "at least 1" in refused(recording, "--last", "0")
    assert "at least 0.1" in refused(recording, "--interval", "0")
    mine = tmp_path / "mine.txt"
    mine.write_text("mine")
    assert "mine.txt" in refused(mine, "--once")
    assert "is the input" in refused(mine, "--once", "--metrics", mine)
    assert mine.read_text() == "mine"
    metrics = tmp_path / "no" / "x.prom"
    assert "does not exist" in refused(recording, "--once", "--metrics", metrics)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    said = refused(recording, "--once", "--tensorboard", tmp_path / "events")
    assert "tensorboard" in said
    assert "pip install" in said
