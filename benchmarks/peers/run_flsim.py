"""A round of flsim: its SyncTrainer with the default server, which averages by examples.

COMMAND   python benchmarks/peers/run_flsim.py --work cnn --cohort 50 --rounds 5 --threads 2

Batches are cut in advance, as its own loaders do. Metrics and evaluation are off.
"""

import logging
import os
from importlib.metadata import version

os.environ["TQDM_DISABLE"] = "1"  # its trainer prints progress bars

import torch
import work
from flsim.clients.base_client import ClientConfig
from flsim.data.data_provider import IFLDataProvider, IFLUserData
from flsim.interfaces.model import IFLModel
from flsim.optimizers.local_optimizers import LocalOptimizerSGDConfig
from flsim.trainers.sync_trainer import SyncTrainer, SyncTrainerConfig
from flsim.utils.simple_batch_metrics import FLBatchMetrics
from omegaconf import OmegaConf
from torch_model import batch_loss, client_tensors, layers_of, make_model


class Model(IFLModel):
    def __init__(self, module):
        self.module = module

    def fl_forward(self, batch):
        loss = batch_loss(self.module, *batch)
        return FLBatchMetrics(
            loss=loss,
            num_examples=self.get_num_examples(batch),
            predictions=None,
            targets=None,
            model_inputs=None,
        )

    def fl_create_training_batch(self, **kwargs):
        return kwargs["batch"]

    def fl_get_module(self):
        return self.module

    def fl_cuda(self):
        pass

    def get_eval_metrics(self, batch):
        return self.fl_forward(batch)

    def get_num_examples(self, batch):
        return len(batch[1])


class User(IFLUserData):
    """One client's batches."""

    def __init__(self, x, y):
        self.batches = list(zip(x.split(work.BATCH), y.split(work.BATCH), strict=True))
        self.examples = len(y)

    def num_train_examples(self):
        return self.examples

    def num_train_batches(self):
        return len(self.batches)

    def num_eval_examples(self):
        return 0

    def num_eval_batches(self):
        return 0

    def train_data(self):
        yield from self.batches

    def eval_data(self):
        yield from ()


class Users(IFLDataProvider):
    def __init__(self, clients):
        self.users = [User(*pair) for pair in clients]

    def train_user_ids(self):
        return list(range(len(self.users)))

    def num_train_users(self):
        return len(self.users)

    def get_train_user(self, user_index):
        return self.users[user_index]

    def train_users(self):
        return self.users

    def eval_users(self):
        return []

    def test_users(self):
        return []


class Trainer(SyncTrainer):
    """The trainer, with a lap of the clock at the end of each round."""

    def _train_one_round(self, *args, **kwargs):
        super()._train_one_round(*args, **kwargs)
        self.clock.lap()


def main():
    given = work.arguments(threads=torch.get_num_threads())
    torch.set_num_threads(given.threads)
    logging.disable(logging.INFO)
    clients = client_tensors(given)

    clock = work.Clock()
    optimizer = LocalOptimizerSGDConfig(lr=work.RATE, momentum=0.0, weight_decay=0.0)
    config = SyncTrainerConfig(
        epochs=given.rounds,  # all clients are in every round
        users_per_round=given.cohort,
        do_eval=False,
        always_keep_trained_model=True,
        report_train_metrics=False,
        client=ClientConfig(epochs=1, optimizer=optimizer, shuffle_batch_order=True),
    )
    module = make_model(given.work)
    trainer = Trainer(model=Model(module), **OmegaConf.structured(config))
    trainer.clock = clock
    trainer.train(Users(clients), None, given.cohort, distributed_world_size=1)
    module = trainer.global_model().fl_get_module()
    work.report(given, clock, layers_of(module), version=version("flsim"))


if __name__ == "__main__":
    main()
