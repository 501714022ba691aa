"""A round of flwr: its FedAvg strategy in its simulation engine, with an actor of ray for each CPU.

COMMAND   python benchmarks/peers/run_flwr.py --work cnn --cohort 50 --rounds 5 --actors 2

Actors keep the model and the data; a message carries the params and nothing is evaluated. The
first round includes the start of ray.
"""

import logging
import os
import warnings
from importlib.metadata import version

# neither of these is work: telemetry, and copies of the actors' output
os.environ.update(FLWR_TELEMETRY_ENABLED="0", RAY_USAGE_STATS_ENABLED="0", RAY_DEDUP_LOGS="0")
os.environ["PYTHONPATH"] = os.path.dirname(os.path.abspath(__file__))  # for the actors

import flwr_app
import work
from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch_model import layers_of, make_model


def main():
    given = work.arguments(actors=os.cpu_count())
    logging.getLogger("flwr").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    model = make_model(given.work)
    clock, last = work.Clock(), {}

    def lap(number, arrays):
        if number:
            clock.lap()
        last["arrays"] = arrays

    server = ServerApp()

    @server.main()
    def run(grid, context):
        # all clients in every round: by default a round takes those that are connected
        all_clients = {"min_train_nodes": given.cohort, "min_available_nodes": given.cohort}
        strategy = FedAvg(fraction_train=1.0, fraction_evaluate=0.0, **all_clients)
        strategy.start(
            grid,
            ArrayRecord(model.state_dict()),
            num_rounds=given.rounds,
            train_config=ConfigRecord(
                {"work": given.work, "cohort": given.cohort, "check": given.check}
            ),
            evaluate_fn=lap,
        )

    run_simulation(
        server,
        flwr_app.app,
        given.cohort,
        backend_config={
            "init_args": {"num_cpus": given.actors, "log_to_driver": False},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )
    model.load_state_dict(last["arrays"].to_torch_state_dict())
    work.report(given, clock, layers_of(model), version=version("flwr"))


if __name__ == "__main__":
    main()
