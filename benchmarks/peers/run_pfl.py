"""A round of pfl: FederatedAveraging on its simulated backend, with its PyTorch model.

COMMAND   python benchmarks/peers/run_pfl.py --work cnn --cohort 50 --rounds 5 --threads 2
          OMP_NUM_THREADS=1 torchrun --standalone --nproc-per-node 2 \\
              benchmarks/peers/run_pfl.py --threads 1

One process, or several that torchrun starts, as its documentation recommends; rank 0 prints.
Tensors are in memory, users train one after another, and nothing is evaluated.
"""

from importlib.metadata import version

import numpy as np
import torch
import work
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.internal.ops.pytorch_ops import distributed
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch_model import Network, batch_loss, client_tensors, layers_of, make_model


class Lap(TrainingProcessCallback):
    def __init__(self, clock):
        self.clock = clock

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        self.clock.lap()
        return False, Metrics()


def loss(self, x, y):
    return batch_loss(self, x, y)


def metrics(self, x, y):
    """No metrics: pfl always evaluates in its first round, which should cost nothing here."""
    return {}


Network.loss, Network.metrics = loss, metrics


def main():
    given = work.arguments(threads=torch.get_num_threads())
    torch.set_num_threads(given.threads)
    np.random.seed(0)  # noqa: NPY002 -- pfl's own, which must agree between its processes
    clients = client_tensors(given)

    clock = work.Clock()
    users = [PyTorchTensorDataset(tensors, user_id=str(i)) for i, tensors in enumerate(clients)]
    sampler = get_user_sampler("minimize_reuse", range(len(users)))
    dataset = FederatedDataset(users.__getitem__, sampler)
    network = make_model(given.work)
    model = PyTorchModel(
        network, torch.optim.SGD, central_optimizer=torch.optim.SGD(network.parameters(), lr=1.0)
    )
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=given.rounds,
            evaluation_frequency=given.rounds + 1,
            train_cohort_size=given.cohort,
            val_cohort_size=0,
        ),
        SimulatedBackend(dataset, dataset, postprocessors=[WeightByDatapoints()]),
        model,
        NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=work.RATE, local_batch_size=work.BATCH
        ),
        callbacks=[Lap(clock)],
        send_metrics_to_platform=False,
    )
    if distributed.global_rank == 0:
        work.report(given, clock, layers_of(network), version=version("pfl"))


if __name__ == "__main__":
    main()
