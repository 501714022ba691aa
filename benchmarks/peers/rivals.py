"""The rivals: their environments, their scripts, and the settings that are tried."""

import os
from typing import NamedTuple

CORES = os.cpu_count()


class Rival(NamedTuple):
    environment: str  # a folder of --environments and a file of requirements; "" is ours
    python: str  # the Python that makes the environment
    script: str
    settings: list[str]
    launcher: str = "python"  # in the environment's bin
    by_hand: bool = False  # a loop for this work alone, no library


THREADS = [f"--threads {CORES}", "--threads 1"]
OURS = Rival(
    "",
    "python3.11",
    "run_ours.py",
    [
        f"--layout {layout} --devices {devices}"
        for devices in (CORES, 1)
        for layout in ("sequential", "5")
    ],
)
TORCHRUN = f"torchrun --standalone --nproc-per-node {CORES}"
RIVALS = {
    "pfl, processes": Rival("pfl", "python3.11", "run_pfl.py", ["--threads 1"], TORCHRUN),
    "pfl": Rival("pfl", "python3.11", "run_pfl.py", THREADS),
    "PyTorch by hand": Rival(
        "torch",
        "python3.11",
        "run_torch.py",
        [f"--processes {CORES} --threads 1", *THREADS],
        by_hand=True,
    ),
    "fedjax": Rival(
        "fedjax",
        "python3.10",
        "run_fedjax.py",
        ["--backend jit", f"--backend pmap --devices {CORES}"],
    ),
    "fedjax, newer jax": Rival("fedjax_new", "python3.11", "run_fedjax.py", ["--backend jit"]),
    "flwr": Rival("flwr", "python3.11", "run_flwr.py", [f"--actors {CORES}"]),
    "fluke": Rival("fluke", "python3.11", "run_fluke.py", THREADS),
    "blazefl": Rival(
        "blazefl",
        "python3.12",
        "run_blazefl.py",
        [
            "--trainer processes",
            "--trainer threads",
            *(f"--trainer sequential {threads}" for threads in THREADS),
        ],
    ),
    "flsim": Rival("flsim", "python3.10", "run_flsim.py", THREADS),
}
