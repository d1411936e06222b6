"""On a simulated CUDA device, reported times are those of the transfers.

Only rank 0 runs; an operation lasts as long as is drawn for it, and what it really took
is known in virtual time.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from moetraffic.replay.failure import RankError
from moetraffic.replay.options import Options
from moetraffic.replay.pace import parse_pace
from moetraffic.replay.plan.background import traffic_of
from moetraffic.replay.plan.operations import Plan
from moetraffic.replay.plan.program import Program, Timing
from moetraffic.replay.run import timed_pass
from moetraffic.replay.transport import Bound
from moetraffic.trace.model import UNKNOWN_TIME

from .conftest import planned
from .plan.test_batches import messages
from .simulated_cuda import SimulatedCuda
from .test_pace import MS, at_times, beside, spaced

US = 1000


class SimulatedNccl:
    """The transport of one rank whose operations last as long as given."""

    device = torch.device("cuda", 0)

    def __init__(self, cuda, durations, launch_ns=0):
        self.cuda, self.durations = cuda, durations
        self.launch_ns = launch_ns  # of the host

    def empty(self, size):
        return torch.zeros(size, dtype=torch.uint8)

    def barrier(self):
        self.cuda.sleep(20e-6)
        self.cuda.synchronize()

    def check(self):
        pass

    def bind(self, kind, group, *_, **__):
        return self.messages(group, [kind])

    def messages(self, group, given):
        first = len(self.cuda.transfers)
        numbers = range(first, first + len(given))
        self.cuda.transfers += [[] for _ in numbers]

        def launch():
            self.cuda.now += self.launch_ns
            duration = int(max(self.durations[n] for n in numbers))
            return self.cuda.communicate(group, numbers, duration)

        return launch


@dataclass
class Run:
    plan: Plan
    program: Program
    timing: Timing
    called: np.ndarray  # [N] virtual truth: the stream reaches the call
    begin: np.ndarray  # the transfer begins
    end: np.ndarray

    @property
    def taken(self):
        return self.timing.end - self.timing.issue


@pytest.fixture
def on_device(monkeypatch):
    """Replay rank 0 of a plan on a simulated device."""

    def run(
        made,
        pace="asap",
        *,
        durations,
        launch_ns=0,
        **options,
    ):
        plan, programs = made
        cuda = SimulatedCuda()
        moves = SimulatedNccl(cuda, durations, launch_ns)
        how = Options(trace=Path("toy.h5"), pace=parse_pace(pace), **options)
        with monkeypatch.context() as patch:
            cuda.install(patch)
            timing = timed_pass(how, Bound(plan, programs[0], moves))
        assert [len(t) for t in cuda.transfers] == [1] * len(programs[0])
        truth = np.array([t[0] for t in cuda.transfers]).T
        return Run(plan, programs[0], timing, *truth)

    return run


def drawn(count, low=50 * US, high=2 * MS):
    """Log-uniform durations; the seed is in the message of a failing test."""
    seed = secrets.randbits(32)
    print(f"durations by seed {seed}")
    random = np.random.default_rng(seed)
    return np.exp(random.uniform(np.log(low), np.log(high), count)).astype(np.int64)


def assert_totals(found, *, since="begin"):
    """Totals of transfer time and of the wall clock within 1% of the truth."""
    truth = (found.end - getattr(found, since)).sum()
    assert found.taken.sum() == pytest.approx(truth, rel=0.01)
    wall = found.end.max() - found.begin.min()
    assert np.ptp([found.timing.issue.min(), found.timing.end.max()]) == pytest.approx(
        wall, rel=0.01
    )
    assert (found.timing.end >= found.end - US).all()
    np.testing.assert_allclose(found.timing.end, found.end, atol=20 * US)


def overlapping(found):
    """Virtual time in which two operations of different streams run, ns."""
    dense = found.program.stream > 0
    return sum(
        max(0, min(e, f) - max(b, c))
        for b, e in zip(found.begin[dense], found.end[dense], strict=True)
        for c, f in zip(found.begin[~dense], found.end[~dense], strict=True)
    )


def test_as_soon_as_possible_queueing_is_not_transfer(toy, on_device):
    # the host queues an iteration long before the device reaches its end
    plan, programs = planned(at_times(toy(iterations=range(17)), spaced))
    count = len(programs[0])
    assert count == 119
    found = on_device((plan, programs), durations=drawn(count))
    assert_totals(found)
    each = found.end - found.begin
    np.testing.assert_allclose(found.taken, each, atol=20 * US)
    assert set(found.timing.due.tolist()) == {UNKNOWN_TIME}


@pytest.mark.parametrize("pace", ["asap", "captured", "open-loop"])
def test_a_launch_that_an_idle_device_waits_for_is_not_transfer(toy, on_device, pace):
    # seen on an H200: a launch of 35 us for transfers of 58 us
    plan, programs = planned(at_times(toy(iterations=range(17)), spaced))
    durations = drawn(len(programs[0]), low=20 * US, high=80 * US)
    found = on_device((plan, programs), pace, durations=durations, launch_ns=40 * US)
    assert_totals(found)


def test_captured_gaps_are_kept_and_are_not_transfer(toy, on_device):
    plan, programs = planned(at_times(toy(iterations=range(5)), spaced))
    found = on_device((plan, programs), "captured", durations=drawn(len(programs[0])))
    assert_totals(found)
    gap_ns = found.program.gap_ns[1:]
    kept = found.begin[1:] - found.end[:-1]
    np.testing.assert_allclose(kept, gap_ns, atol=40 * US)
    assert kept.sum() == pytest.approx(gap_ns.sum(), rel=0.01)
    lateness = found.timing.issue - found.timing.due
    assert np.abs(lateness[1:]).max() <= 40 * US


@pytest.mark.parametrize("pace", ["asap", "captured", "scaled:0.5"])
def test_dense_operations_overlap_exchanges(toy, on_device, pace):
    plan, programs = planned(at_times(toy(iterations=range(4)), beside))
    program = programs[0]
    durations = drawn(len(program), 50 * US, MS)
    dense = program.stream == 1
    # longer than captured, and than the rest of the iteration
    durations[dense] = 30 * MS
    found = on_device((plan, programs), pace, durations=durations)
    assert_totals(found)
    exchanges = (found.end - found.begin)[~dense]
    # all exchanges but the first of each iteration run beside the dense operation
    first = np.flatnonzero(np.diff(plan.iteration[program.operation], prepend=-1))
    beside_ns = exchanges.sum() - (found.end - found.begin)[first].sum()
    assert overlapping(found) == pytest.approx(beside_ns, rel=0.01)


@pytest.mark.parametrize("pace", ["asap", "captured"])
def test_background_operations_run_where_they_belong(toy, on_device, pace):
    beside = traffic_of("tp=2,micro-batch=1", "tiny", 2)
    trace = at_times(toy(iterations=range(3)), spaced)
    plan, programs = planned(trace, background=beside, dense=False)
    program = programs[0]
    found = on_device(
        (plan, programs), pace, durations=drawn(len(program), 20 * US, MS)
    )
    assert_totals(found)
    waiting = program.after >= 0
    assert (found.begin[waiting] >= found.end[program.after[waiting]]).all()
    # operations of the background lie between exchanges, not behind them
    dense, when = program.stream > 0, plan.iteration[program.operation]
    for iteration in range(3):
        last = found.begin[(when == iteration) & ~dense].max()
        assert (found.end[(when == iteration) & dense] < last).mean() > 0.5


def test_an_open_loop_goes_on_over_slow_operations(toy, on_device):
    plan, programs = planned(at_times(toy(iterations=range(6)), spaced))
    program = programs[0]
    durations = drawn(len(program), 50 * US, MS)
    (slow, *_) = np.flatnonzero(program.stream == 1)
    durations[slow] = 100 * MS  # two and a half iterations
    found = on_device((plan, programs), "open-loop", durations=durations)
    # the dense operations after the slow one wait in its communicator
    assert_totals(found, since="called")
    due = program.due_ns - program.due_ns[0]
    exchange = program.stream == 0
    np.testing.assert_allclose(
        (found.begin - found.begin[0])[exchange], due[exchange], atol=60 * US
    )
    lateness = found.timing.issue - found.timing.due
    assert lateness.min() >= 0
    assert lateness.max() < 60 * US
    assert found.timing.end[slow] > found.timing.issue[slow + 14]


@pytest.mark.parametrize("pace", ["asap", "captured", "open-loop"])
def test_messages_of_a_batch_are_one_launch(on_device, pace):
    # in each iteration two messages cross, and 9 ms later a third follows alone
    times = {(0, 1): (0, 5), (1, 0): (2, 6), (0, 2): (15, 18)}
    plan, programs = planned(messages(times, iterations=6), in_common=True)
    program = programs[0]
    batch = 3 * (np.arange(18) // 3) + np.tile([0, 0, 2], 6)
    assert program.batch.tolist() == batch.tolist()
    # twelve launches of an idle device add some 0.1 ms to the total
    durations = drawn(18, low=MS, high=4 * MS)
    found = on_device((plan, programs), pace, durations=durations)
    assert_totals(found, since="called" if pace == "open-loop" else "begin")
    for name in ("issue", "end", "due"):
        measured = getattr(found.timing, name)
        assert (measured == measured[batch]).all()
    if pace == "captured":  # issued when the last is due
        gaps = found.begin[3::3] - found.end[2:-1:3]
        np.testing.assert_allclose(gaps, 24 * MS, atol=40 * US)
    if pace == "open-loop":
        since = (found.begin - found.begin[0])[::3]
        np.testing.assert_allclose(since, 40 * MS * np.arange(6), atol=60 * US)


def test_an_operation_that_does_not_end_is_named(toy, on_device):
    plan, programs = planned(at_times(toy(iterations=range(3)), spaced))
    program = programs[0]
    durations = drawn(len(program))
    durations[9] = 3600 * 10**9
    with pytest.raises(RankError) as error:
        on_device((plan, programs), durations=durations, timeout_s=2.0)
    assert error.value.operation == plan.name(int(program.operation[9]))
    assert "timed out" in str(error.value)


def test_operations_queued_for_longer_than_the_timeout_have_not_timed_out(
    toy, on_device
):
    plan, programs = planned(at_times(toy(iterations=range(3)), spaced))
    durations = np.full(len(programs[0]), 1500 * MS)
    # the host launches an iteration ahead: the last of it waits for 9 s
    assert durations[0] < 2e9 < np.bincount(plan.iteration).min() * durations[0]
    assert_totals(on_device((plan, programs), durations=durations, timeout_s=2.0))
