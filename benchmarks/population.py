"""A population larger than the memory: peak memory, and rounds against the same cohorts in memory.

COMMAND   python benchmarks/population.py --folder FOLDER
EXPECTED  peak memory below 2 GB; a round takes less than 1.2 times as long as with resident data
TIME      four minutes on two CPU cores

The folder becomes a packed one of 340,000 clients with 40 GB of images (uint8[32, 32, 3], 20 to 57
of a client). Its files are sparse: they take no room on the disk, and every pixel is 0, but each
byte is read and its checksum is computed. Cohorts of 50 clients do one epoch in batches of 20.

Then the same cohorts are trained from the folder and from memory, in turns, where memory holds the
clients of these cohorts only, and the ratio of the two times of a round is printed: for FedAvg and
FedHBM with a small CNN, and for FedAvg with an MLP whose rounds are so short that reading counts.

FedHBM keeps a row of 200 kB for each client, on disk and on the host. Rows on disk are trained
first, so the peak memory that is printed after each of the two is that of rows on disk, and then
that of rows on the host. Then the times of a round are compared, too.
"""

import argparse
import resource
import statistics
import time
from pathlib import Path

import jax
import numpy as np

import fedjax_algos as fa
from fedjax_algos.data.stored.packing import FORMAT, checksum, fields_of, make_split, save_index
from fedjax_algos.participation import Cohorts

CLIENTS, COHORT, ROUNDS, BLOCKS = 340_000, 50, 5, 5
SHAPE = (32, 32, 3)
LOCAL = fa.Local(batch_size=20, learning_rate=0.05, epochs=1)


def make_folder(folder, clients):
    """Writes what `pack` would have written for images of zeros, with sparse files."""
    example = {"x": jax.ShapeDtypeStruct(SHAPE, np.uint8), "y": jax.ShapeDtypeStruct((), np.int32)}
    counts = np.random.default_rng(0).integers(20, 58, clients).astype(np.int32)
    splits, numbers = {}, {}
    for name, sizes in {"train": counts, "test": np.array([1000], np.int32)}.items():
        names = [f"client{number:06}" for number in range(len(sizes))]
        source = fa.data.ClientSource("zeros", names, sizes, example, read=None)
        splits[name] = split = make_split(folder / name, source)
        numbers[name] = dict(zip(names, sizes.tolist(), strict=True))
        for number, one in enumerate(example.values()):
            zeros = {size: np.zeros((size, *one.shape), one.dtype) for size in np.unique(sizes)}
            known = {n: checksum([array], [array[0].nbytes] * n) for n, array in zeros.items()}
            split.checksums[:, number] = [known[size] for size in sizes]
        split.done = len(sizes)
    facts = {"format": FORMAT, "clients": numbers, "fields": fields_of(source)}
    save_index(folder, facts | {"num_classes": 10, "notes": []}, splits)


def peak_megabytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000


def train(name, problem, data, **options):
    engine = fa.make_engine(fa.algorithms.algorithms[name](problem, LOCAL), **options)
    start = time.perf_counter()
    state, rows = fa.simulate(
        engine, data, cohort_size=COHORT, rounds=4 * ROUNDS, eval_every=ROUNDS
    )
    jax.block_until_ready(state.server)
    seconds = time.perf_counter() - start
    print(f"{name}: {4 * ROUNDS} rounds in {seconds:.1f} s, loss {rows[-1]['train_loss']:.4f}")
    print(f"peak memory {peak_megabytes():.0f} MB", flush=True)


def windows_of(data):
    """Some rounds for each block, and all of their clients."""
    cohorts = Cohorts(data.counts(), LOCAL, cohort_size=COHORT, seed=1)
    windows = [cohorts.dispatches(ROUNDS) for _ in range(BLOCKS)]
    return windows, np.concatenate([window.client for window in windows])


def compare(name, data, places):
    """The times of a round in two places, in turns, of compiled programs.

    Args:
      name: of the model.
      data: all clients' examples.
      places: by name, an engine and examples.
    """
    population = fa.Population(data.num_clients, COHORT, int(data.counts().sum(dtype=np.int64)))
    times = {place: [] for place in places}
    states = {place: engine.init(0, population) for place, (engine, _) in places.items()}
    windows, _ = windows_of(data)
    for number, window in enumerate([windows[0], *windows]):
        for place, (engine, examples) in places.items():
            start = time.perf_counter()
            state, _ = engine.rounds(states[place], examples, window)
            jax.block_until_ready(state.server)
            states[place] = state
            if number:  # the first block compiles
                times[place].append((time.perf_counter() - start) / ROUNDS)
    ratios = [one / other for one, other in zip(*times.values(), strict=True)]
    medians = {place: 1e3 * statistics.median(values) for place, values in times.items()}
    shown = ", ".join(f"{milliseconds:.1f} {place}" for place, milliseconds in medians.items())
    print(f"{name}, ms of a round: {shown}")
    print(f"ratio {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")


def compare_examples(name, algorithm, data, **options):
    """Examples in files, and in memory those of the clients of these cohorts."""
    engine, (_, clients) = fa.make_engine(algorithm, **options), windows_of(data)
    stored, resident = engine.put_data(data), jax.device_put(data.cohort(clients))
    stored.reserve(clients)
    compare(name, data, {"from files": (engine, stored), "from memory": (engine, resident)})


def compare_rows(name, problem, data, rows):
    """Rows of client state on disk and on the host, of clients with examples in memory."""
    algorithm, (_, clients) = fa.algorithms.fedhbm(problem, LOCAL), windows_of(data)
    resident = jax.device_put(data.cohort(clients))
    places = {"with rows on disk": rows, "with rows on the host": "host"}
    engines = {
        place: fa.make_engine(algorithm, client_state=where) for place, where in places.items()
    }
    compare(name, data, {place: (engine, resident) for place, engine in engines.items()})


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--folder", required=True, type=Path, help="of the packed clients")
    parser.add_argument("--clients", type=int, default=CLIENTS)
    arguments = parser.parse_args()
    if not (arguments.folder / "index.npz").exists():
        make_folder(arguments.folder, arguments.clients)
    data = fa.data.open_federated(arguments.folder)
    gigabytes = sum(f.stat().st_size for f in (arguments.folder / "train").glob("*.npy")) / 1e9
    examples = data.counts().sum(dtype=np.int64)
    print(f"{data.num_clients} clients, {examples} examples, {gigabytes:.1f} GB")
    problem = fa.models.models.make("cnn_fedcompass", SHAPE, 10)
    train("fedavg", problem, data)
    small = fa.models.models.make("mlp:hidden=16", SHAPE, 10)  # a row of client state is 200 kB
    rows = fa.RowsOnDisk(arguments.folder / "rows")
    train("fedhbm", small, data, client_state=rows)
    train("fedhbm", small, data, client_state="host")
    fedavg, fedhbm = fa.algorithms.fedavg, fa.algorithms.fedhbm
    compare_examples("FedAvg, CNN", fedavg(problem, LOCAL), data)
    compare_examples("FedAvg, MLP", fedavg(small, LOCAL), data)
    compare_examples("FedHBM, CNN", fedhbm(problem, LOCAL), data, client_state="host")
    compare_rows("FedHBM, MLP", small, data, rows)


if __name__ == "__main__":
    main()
