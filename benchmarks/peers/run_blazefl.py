"""A round of blazefl: its FedAvg handler with one of its trainers.

COMMAND   python benchmarks/peers/run_blazefl.py --work cnn --cohort 50 --rounds 5
          python benchmarks/peers/run_blazefl.py --trainer sequential --threads 2

`--trainer` is processes (each with one thread, params in shared memory), threads or sequential.
"""

import os
import tempfile
from importlib.metadata import version
from pathlib import Path

os.environ["TQDM_DISABLE"] = "1"  # its trainers print a progress bar

import torch
import work
from blazefl.contrib import (
    FedAvgBaseClientTrainer,
    FedAvgBaseServerHandler,
    FedAvgProcessPoolClientTrainer,
    FedAvgThreadPoolClientTrainer,
)
from blazefl.core import IPCMode, ModelSelector, PartitionedDataset
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    TensorDataset,
)
from torch_model import client_tensors, layers_of, make_model


class Models(ModelSelector):
    def select_model(self, model_name):
        return make_model(model_name)


SETS = []  # the tensors of each client; the processes are forks and share them, so none is sent


class Clients(PartitionedDataset):
    """A batch is one indexing, not a stack of examples."""

    def get_dataset(self, type_, cid):
        return SETS[cid]

    def set_dataset(self, type_, cid, dataset):
        pass

    def get_dataloader(self, type_, cid, batch_size=None, generator=None):
        order = RandomSampler(SETS[cid], generator=generator)
        sampler = BatchSampler(order, batch_size, drop_last=False)
        return DataLoader(SETS[cid], sampler=sampler, batch_size=None)


def make_trainer(given, data, folder):
    common = {
        "model_selector": Models(),
        "model_name": given.work,
        "dataset": data,
        "device": "cpu",
        "num_clients": given.cohort,
        "epochs": 1,
        "batch_size": work.BATCH,
        "lr": work.RATE,
        "seed": 0,
    }
    if given.trainer == "sequential":
        return FedAvgBaseClientTrainer(**common)
    common["num_parallels"] = given.parallel
    if given.trainer == "threads":
        return FedAvgThreadPoolClientTrainer(**common)
    return FedAvgProcessPoolClientTrainer(
        **common,
        share_dir=Path(folder) / "share",
        state_dir=Path(folder) / "state",
        ipc_mode=IPCMode.SHARED_MEMORY,
    )


def main():
    given = work.arguments(trainer="processes", parallel=os.cpu_count(), threads=1)
    torch.set_num_threads(given.threads)
    SETS.extend(TensorDataset(*pair) for pair in client_tensors(given))
    data = Clients()

    clock = work.Clock()
    # PyTorch imports much at its first step; a pool is forked in every round and would repeat it
    torch.optim.SGD(make_model(given.work).parameters(), lr=work.RATE).step()
    handler = FedAvgBaseServerHandler(
        Models(), given.work, data, given.rounds, given.cohort, 1.0, "cpu", work.BATCH, 0
    )
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(given, data, folder)
        while not handler.if_stop():
            cohort = handler.sample_clients()
            trainer.local_process(handler.downlink_package(), cohort)
            for package in trainer.uplink_package():
                handler.load(package)
            clock.lap()
        work.report(given, clock, layers_of(handler.model), version=version("blazefl"))


if __name__ == "__main__":
    main()
