"""Ranks of the backend `fake`, with which programs try large layouts in one process."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from moetraffic.trace.merge.log_format import OPERATIONS


@pytest.mark.usefixtures("fake_group")
def test_peers_of_a_fake_group_are_recorded(hook) -> None:
    with hook.installed():
        rows = torch.ones(8, 2)
        dist.all_to_all_single(torch.empty(6, 2), rows, [0, 1, 2, 3], [2, 2, 2, 2])
        dist.send(torch.ones(3), 2)
        dist.recv(torch.empty(5), 0)
        dist.irecv(torch.empty(5)).wait()
    exchange, *sends = hook.calls()
    assert exchange["splits"] == (2, 2, 2, 2, 0, 1, 2, 3)
    assert (exchange["rows_sent"], exchange["rows_received"]) == (8, 6)
    assert [OPERATIONS[call["operation"]] for call in sends] == ["send_recv"] * 3
    peers = [(call["source"], call["destination"]) for call in sends]
    assert peers == [(1, 2), (0, 1), (-1, 1)]
    assert [call["bytes"] for call in sends] == [12, 20, 20]
