"""How many batched runs a call of a program computes."""

import jax
from jax.sharding import Mesh

from fedjax_algos.core.limits import check_device_memory
from fedjax_algos.engine.placed.devices import client_mesh

_MEMORY = 2**30  # bytes for the runs of one call, unless those at once need more


def call_size(
    mesh: Mesh | None,
    runs_per_device: int | None,
    memory: int | None,
    num_runs: int,
    run_bytes: int,
) -> tuple[Mesh | None, int, int, str]:
    """The size of equal calls that fit into the memory.

    Args:
      mesh: the devices that share the runs; None for one.
      runs_per_device: runs that a device computes at once; None is one on a CPU, and elsewhere as
        many as fit.
      memory: bytes for the runs of one call; None is 2**30, or what those at once need.
      num_runs: that share a program.
      run_bytes: bytes of one run.

    Returns:
      The devices, the runs that each computes at once, the runs of a call (a multiple of both), and
      a note.

    Raises:
      ValueError: for a memory below that of the runs at once, or if these do not fit into that of
        the devices.
    """
    if mesh is not None and mesh.size > num_runs:
        mesh = client_mesh(list(mesh.devices.flat[:num_runs]))
    devices = 1 if mesh is None else mesh.size
    available = memory or _MEMORY
    default = 1 if jax.default_backend() == "cpu" else max(available // run_bytes // devices, 1)
    at_once = min(runs_per_device or default, -(-num_runs // devices))
    width = devices * at_once
    if memory is None and available < width * run_bytes:
        available = width * run_bytes
        fix = "give fewer clients, runs_per_device or devices"
        what = f"the states of {at_once} runs at once"
        check_device_memory(what, at_once * run_bytes, fix, devices=devices)
    fitting = available // run_bytes
    if fitting < width:
        raise ValueError(
            f"memory={memory} is out of range; give at least {width * run_bytes} bytes "
            f"for {at_once} at once on {devices} devices, or less of these"
        )
    calls = -(-num_runs // (fitting // width * width))
    runs = -(-num_runs // (calls * width)) * width
    note = (
        f"{num_runs} runs in a program, {runs} in a call, {at_once} at once on each of "
        f"{devices} devices: {runs * run_bytes / 1e6:.3g} of {available / 1e6:.4g} MB"
    )
    return mesh, at_once, runs, note
