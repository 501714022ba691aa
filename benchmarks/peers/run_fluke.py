"""A round of fluke: its FedAVG over its in-memory loaders.

COMMAND   python benchmarks/peers/run_fluke.py --work cnn --cohort 50 --rounds 5 --threads 2
"""

from importlib.metadata import version

import torch
import work
from fluke import DDict, FlukeENV
from fluke.algorithms.fedavg import FedAVG
from fluke.data import DataSplitter, DummyDataContainer, FastDataLoader
from fluke.utils import FederationObserver
from torch_model import client_tensors, layers_of, make_model


class Lap(FederationObserver):
    def __init__(self, clock):
        self.clock = clock

    def end_round(self, round):
        self.clock.lap()


def main():
    given = work.arguments(threads=torch.get_num_threads())
    torch.set_num_threads(given.threads)
    clients = client_tensors(given)

    clock = work.Clock()
    environment = FlukeENV()
    environment.set_inmemory(True)
    environment.set_device("cpu")
    environment.set_eval_cfg(server=False, locals=False, pre_fit=False, post_fit=False)
    loaders = [
        FastDataLoader(x, y, num_labels=work.CLASSES, batch_size=work.BATCH, shuffle=True)
        for x, y in clients
    ]
    container = DummyDataContainer(loaders, [None] * len(loaders), None, work.CLASSES)
    algorithm = FedAVG(
        n_clients=given.cohort,
        data_splitter=DataSplitter(container),
        hyper_params=DDict(
            client=DDict(
                batch_size=work.BATCH,
                local_epochs=1,
                loss="CrossEntropyLoss",
                optimizer=DDict(name="SGD", lr=work.RATE),
                scheduler=DDict(name="StepLR", step_size=1, gamma=1),
            ),
            server=DDict(weighted=True),
            model=make_model(given.work),
        ),
    )
    algorithm.set_callbacks([Lap(clock)])
    algorithm.run(n_rounds=given.rounds, eligible_perc=1.0)
    work.report(given, clock, layers_of(algorithm.server.model), version=version("fluke-fl"))


if __name__ == "__main__":
    main()
