"""Worker process of ``moetraffic tolerance``: train on a simulated lossy network.

``python -m moetraffic.models.lossy_training`` reads a workload as JSON from each line
of its standard input, trains it virtually, and prints the result as a line of JSON.
"""

from __future__ import annotations

import json
import math
import sys

import torch

from moetraffic.errors import MoetrafficError
from moetraffic.patterns import Workload

from .virtual_training import VirtualTraining

EVALUATIONS = 32
"""Batches of a rank's size over which the final loss is taken."""


def run(workload: Workload) -> dict[str, float]:
    """Train a workload on virtual ranks with packet loss and evaluate its loss.

    The result has ``loss``, nats a token on batches never trained on, with nothing
    lost; ``crossed`` and ``lost``, elements that should have crossed the network at the
    site, and those that did not arrive.
    """
    training = VirtualTraining(workload)
    for iteration in range(workload.training.iterations):
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
    torch.set_num_threads(1)  # one worker process per core
    for line in sys.stdin:
        try:
            result: dict[str, float | str] = {**run(Workload.from_json(line))}
        except MoetrafficError as error:
            result = {"error": str(error)}
        print(json.dumps(result), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
