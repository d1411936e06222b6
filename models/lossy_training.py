"""Worker process of ``moetraffic tolerance``: train on a simulated lossy network.

``python -m moetraffic.models.lossy_training`` serves ``moetraffic tolerance``.

Its standard input has a workload as JSON a line.  Each is trained virtually, and a line
of JSON on standard output tells how it ended.
"""

from __future__ import annotations

import json
import math
import sys

import torch

from moetraffic.errors import MoetrafficError
from moetraffic.patterns import Workload

from .objective import text
from .virtual_training import VirtualTraining

EVALUATIONS = 32
"""Batches of a rank's size over which the final loss is taken."""


def run(workload: Workload) -> dict[str, float]:
    """Train a workload on virtual ranks with packet loss and evaluate its loss.

    Returns
    -------
    dict
        ``loss``, nats a token on batches never trained on, with nothing lost;
        ``crossed`` and ``lost``, elements that should have crossed the network at the
        site, and those that did not arrive.
    """
    plan, shape = workload.training, workload.model
    training = VirtualTraining(workload, text(shape, plan))
    for iteration in range(plan.iterations):
        losses = training.iterate(iteration)
        if not math.isfinite(sum(losses)):
            break  # training has diverged
    network = training.network
    return {
        "loss": training.evaluate(EVALUATIONS),
        "crossed": network.crossed if network else 0,
        "lost": network.lost if network else 0,
    }


def main() -> int:
    """Train every workload read from standard input; return the exit code."""
    torch.set_num_threads(
        1
    )  # as many programs run beside each other as there are cores
    for line in sys.stdin:
        try:
            told: dict[str, object] = dict(run(Workload.from_json(line)))
        except MoetrafficError as error:
            told = {"error": str(error)}
        print(json.dumps(told), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
