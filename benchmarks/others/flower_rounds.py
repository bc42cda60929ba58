"""Rounds of Flower's simulation with a linear model; runs where Flower is installed, and prints seconds as JSON.

python flower_rounds.py TERMINALS ROUNDS
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from itertools import pairwise

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

TERMINALS, ROUNDS = int(sys.argv[1]), int(sys.argv[2])
SAMPLES, D, STEPS = 14, 561, 10
client, server, started = ClientApp(), ServerApp(), []


@client.train()
def train(message: Message, context: Context) -> Message:
    """Ten steps on a hinge; the rows are made anew, which is little beside what a message costs."""
    rng = np.random.default_rng(int(context.node_config["partition-id"]))
    X = rng.standard_normal((SAMPLES, D)).astype(np.float32)
    y = rng.choice([-1.0, 1.0], SAMPLES)
    w = message.content["arrays"].to_numpy_ndarrays()[0].copy()
    for h in range(STEPS):
        i = h % SAMPLES
        if y[i] * (X[i] @ w) < 1.0:
            w += np.float32(0.01 * y[i]) * X[i]
    content = RecordDict({"arrays": ArrayRecord([w]), "metrics": MetricRecord({"num-examples": SAMPLES})})
    return Message(content=content, reply_to=message)


class Timed(FedAvg):
    """FedAvg that notes when a round begins."""

    def configure_train(self, *given, **more):  # noqa: D102
        started.append(time.perf_counter())
        return super().configure_train(*given, **more)


@server.main()
def main(grid: Grid, context: Context) -> None:
    """All terminals in every round."""
    strategy = Timed(fraction_train=1.0, fraction_evaluate=0.0, min_available_nodes=TERMINALS)
    strategy.start(grid=grid, initial_arrays=ArrayRecord([np.zeros(D, np.float32)]), num_rounds=ROUNDS)


run_simulation(server, client, TERMINALS, backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}})
seconds = [b - a for a, b in pairwise(started)]
print("FOUND", json.dumps({"seconds": statistics.median(seconds[1:]), "rounds": len(seconds) - 1}))
