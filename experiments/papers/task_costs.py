"""Counts what the papers' large tasks cost: bytes of a client, its state, and operations.

COMMAND   python experiments/papers/task_costs.py
EXPECTED  the table of docs/tasks/index.md
TIME      two minutes on one CPU core; nothing is trained or read

Counts are those of a client with an average number of examples, by the shapes of the original data.
A method stands for all values of its options, which change no count but the models that GHBM's
server keeps.
"""

import functools
import re
from pathlib import Path

import jax
import numpy as np

import fedjax_algos as fa
from fedjax_algos.analysis import count_flops, count_memory
from fedjax_algos.cli.config_file import read_config
from fedjax_algos.cli.options import settings_of
from fedjax_algos.core import Dispatch
from fedjax_algos.models import models, with_loss
from fedjax_algos.runs.studies.method import methods_of

PAPERS = Path(__file__).parent
# the shapes of an example and of its label, the classes, and the examples and local steps of an
# average client
TASKS = {
    "ghbm/full_gldv2_mobilenet_v2": ((224, 224, 3), (), 2028, 130, 65),
    "ghbm/full_gldv2_vit_b_16": ((224, 224, 3), (), 2028, 130, 65),
    "ghbm/full_inaturalist_mobilenet_v2": ((224, 224, 3), (), 1203, 13, 10),
    "ghbm/full_inaturalist_vit_b_16": ((224, 224, 3), (), 1203, 13, 10),
    "ghbm/full_stackoverflow": ((20,), (20,), 10_004, 428, 27),
    "fedcompass/full_fed_ixi": ((48, 60, 48, 1), (48, 60, 48), 2, 151, 50),
    "fedcompass/full_fed_isic2019": ((200, 200, 3), (), 8, 3100, 50),
}


def costs(name, example, label, num_classes, num_examples, steps):
    """By algorithm: MB down, MB up, MB of state, TFLOP of a local update."""
    config = read_config(str(PAPERS / f"{name}.toml"))
    settings = settings_of({}, "10", config)
    spec = re.sub(r"weights=[^,]*,head=new,", "", settings.model)
    problem = models.make(spec, example, num_classes)
    if settings.loss is not None:
        problem = with_loss(problem, settings.loss)
    size = settings.batch_size
    kind = {1: np.int32, 3: np.uint8, 4: np.float32}[len(example)]
    examples = {"x": np.zeros((size, *example), kind), "y": np.zeros((size, *label), np.int32)}
    data = fa.federate(examples, fa.Partition.of([np.arange(size)]))
    population = fa.Population(1, 1, size)  # the table of all clients may exceed the memory
    zero, one = np.zeros(1, np.int32), np.ones(1, np.float32)
    count = np.full(1, steps, np.int32)
    dispatches = Dispatch(zero, zero, zero, count, count, zero + num_examples, one, one, zero)
    found = {}
    for method in methods_of(config.methods, settings):
        if method.algorithm in found:
            continue
        engine = fa.make_engine(method.build(problem, settings))
        init = functools.partial(engine.init, 0, population)
        state = jax.eval_shape(init)._replace(seed=0)
        sent = engine.transfer(state, data, dispatches)
        memory = count_memory(engine.algorithm, state, data)
        flops = count_flops(engine.algorithm, state, data).of(dispatches)
        mega = np.array([*sent[:2], memory.between_rounds]) / 1e6
        found[method.algorithm] = (*mega, float(flops[0]) / 1e12)
    return found


def main():
    print("task, method: MB down, MB up, MB of state, TFLOP of a local update")
    for name, shapes in TASKS.items():
        for method, values in costs(name, *shapes).items():
            task = name.partition("full_")[2]
            print(f"{task}, {method}:", *(f"{value:.4g}" for value in values), flush=True)


if __name__ == "__main__":
    main()
