"""Rates of ports are found although some transfers are delayed."""

from __future__ import annotations

import secrets
from types import SimpleNamespace

import numpy as np
import pytest

from moetraffic.replay.port_probe import PortProbe
from moetraffic.replay.results.ports import ENOUGH

RANKS = 4


class DelayedNetwork(PortProbe):
    """Transfers that take as long as the busiest port's bytes, or longer."""

    def __init__(self, bytes_s, random, delayed):
        self._plan, self._rank = SimpleNamespace(world=RANKS), 0
        self.bytes_s, self.random, self.delayed = bytes_s, random, delayed

    def _time(self, cells, *, times=1):
        busiest = np.maximum(cells.sum(axis=0), cells.sum(axis=1))
        # a token bucket of 32 kB passes at once
        seconds = 1e-3 + (np.maximum(busiest - 32_768, 0) / self.bytes_s).max()
        if self.random.random() < self.delayed:
            seconds += self.random.exponential(0.01)
        return times * seconds

    def _even_bytes(self):
        return 10**6


@pytest.mark.parametrize("delayed", [0.0, 0.2])
def test_delays_of_some_transfers_move_no_rate(delayed):
    seed = secrets.randbits(32)
    print(f"rates and delays by seed {seed}")
    random = np.random.default_rng(seed)
    for _ in range(4):
        mbps = np.exp(random.uniform(np.log(30), np.log(200), RANKS))
        bytes_s = mbps * 1e6 / 8
        ports = DelayedNetwork(bytes_s, random, delayed).run()
        assert len(ports.rates) == 2 * RANKS
        for port in ports.rates:
            truth = bytes_s[port.rank]
            if port.at_least:  # the others together are about as fast, or slower
                assert bytes_s.sum() - truth < 1.1 * ENOUGH * truth
                assert port.rate.value < 1.1 * truth
            else:
                assert port.rate.value == pytest.approx(truth, rel=0.1)
