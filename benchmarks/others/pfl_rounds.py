"""Rounds of pfl's simulation with a linear model in PyTorch; runs where pfl is installed, and prints seconds as JSON.

python pfl_rounds.py TERMINALS ROUNDS
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from itertools import pairwise

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel

TERMINALS, ROUNDS = int(sys.argv[1]), int(sys.argv[2])
SAMPLES, D, STEPS = 14, 561, 10


class Linear(torch.nn.Module):
    """A hinge on a linear score."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(D, 1, bias=False)

    def forward(self, x):  # noqa: D102
        return self.linear(x)[:, 0]

    def loss(self, x, y, is_eval=False):  # noqa: D102
        self.eval() if is_eval else self.train()
        return torch.clamp(1.0 - y * self(x), min=0.0).mean()

    def metrics(self, x, y):  # noqa: D102
        return {"loss": Weighted(self.loss(x, y, True).item() * len(y), len(y))}


class Clock(TrainingProcessCallback):
    """Notes when rounds end."""

    times: list[float] = []  # noqa: RUF012

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):  # noqa: D102
        self.times.append(time.perf_counter())
        return False, Metrics()


rng = np.random.default_rng(0)
rows = {
    t: [
        torch.as_tensor(rng.standard_normal((SAMPLES, D), dtype=np.float32)),
        torch.as_tensor(rng.choice([-1.0, 1.0], SAMPLES).astype(np.float32)),
    ]
    for t in range(TERMINALS)
}
sampler = get_user_sampler("minimize_reuse", list(rows))
data = FederatedDataset(lambda t: Dataset(raw_data=rows[t]), sampler)
module = Linear()
model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), 1.0))
parameters = NNAlgorithmParams(
    central_num_iterations=ROUNDS, evaluation_frequency=10**9, train_cohort_size=TERMINALS, val_cohort_size=0
)
FederatedAveraging().run(
    algorithm_params=parameters,
    backend=SimulatedBackend(data, data),
    model=model,
    model_train_params=NNTrainHyperParams(
        local_batch_size=1, local_num_epochs=None, local_num_steps=STEPS, local_learning_rate=0.01
    ),
    model_eval_params=NNEvalHyperParams(local_batch_size=SAMPLES),
    callbacks=[Clock()],
)
seconds = [b - a for a, b in pairwise(Clock.times)]
print("FOUND", json.dumps({"seconds": statistics.median(seconds[1:]), "rounds": len(seconds) - 1}))
