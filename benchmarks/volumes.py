"""Forms of the 3x3x3 convolution: values and gradients in a loop, and the memory that they take.

COMMAND   taskset -c 0 python benchmarks/volumes.py
EXPECTED  a line for each form and layer
TIME      more than two minutes on one CPU core

The layers are those of `unet_3d` on one volume of 48x60x48. Each program is two steps of gradient
descent on the volume and the kernel, with one thread; `mapped` are two clients with kernels of
their own, in milliseconds for each. Gathered patches are one product with 27 times the volume as
rows; shifted products are the sum of 27 products. PyTorch is measured if it is installed, with one
thread. The times are the least of two, of the processor; the memory is the compiler's figure.
"""

import os
import time

os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_algos.models import convolve_3d

LAYERS = (
    ((48, 60, 48), 8, 16),
    ((48, 60, 48), 48, 16),
    ((12, 15, 12), 32, 64),
)
STEPS, REPEATS, CLIENTS = 2, 2, 2


def windows(volumes):
    padded = jnp.pad(volumes, ((0, 0), *[(1, 1)] * 3, (0, 0)))
    depth, height, width = volumes.shape[1:4]
    for i, j, k in np.ndindex(3, 3, 3):
        yield padded[:, i : i + depth, j : j + height, k : k + width]


def gathered(volumes, kernel):
    rows = jnp.concatenate(list(windows(volumes)), -1)
    return rows @ kernel.reshape(-1, kernel.shape[-1])


def shifted(volumes, kernel):
    flat = kernel.reshape(27, *kernel.shape[3:])
    return sum(window @ weights for window, weights in zip(windows(volumes), flat, strict=True))


FORMS = {
    "convolve_3d": convolve_3d,
    "lax": lambda volumes, kernel: convolve_3d(volumes, kernel, implementation="lax"),
    "gathered patches": gathered,
    "shifted products": shifted,
}


def descend(form):
    def run(volumes, kernel, weights):
        def step(_, pair):
            gradients = jax.grad(lambda v, k: (form(v, k) * weights).sum(), (0, 1))(*pair)
            return jax.tree.map(lambda a, g: a - 1e-6 * g, pair, gradients)

        return jax.lax.fori_loop(0, STEPS, step, (volumes, kernel))

    return run


def least(run):
    times = []
    for _ in range(REPEATS):
        start = time.process_time()
        run()
        times.append((time.process_time() - start) * 1e3)
    return min(times)


def measure(form, given, mapped):
    run = descend(form)
    if mapped:
        run = jax.vmap(run)
        given = [jnp.stack([each] * CLIENTS) for each in given]
    program = jax.jit(run).lower(*given).compile()
    milliseconds = least(lambda: jax.block_until_ready(program(*given)))
    megabytes = program.memory_analysis().temp_size_in_bytes / 1e6
    return milliseconds / STEPS / (CLIENTS if mapped else 1), megabytes


def measure_torch(volumes, kernel, weights):
    """Milliseconds of a step, or None without PyTorch."""
    try:
        import torch
    except ImportError:
        return None
    torch.set_num_threads(1)
    x, k, w = (torch.from_numpy(np.array(each)) for each in (volumes, kernel, weights))
    x, w = (each.movedim(-1, 1).contiguous() for each in (x, w))
    k = k.permute(4, 3, 0, 1, 2).contiguous()

    def step():
        pair = x.requires_grad_(), k.requires_grad_()
        loss = (torch.nn.functional.conv3d(*pair, padding=1) * w).sum()
        torch.autograd.grad(loss, pair)

    step()
    return least(step)


def main():
    rng = np.random.default_rng(0)
    for size, channels, features in LAYERS:
        given = [
            jnp.asarray(rng.normal(size=shape), jnp.float32)
            for shape in (
                (1, *size, channels),
                (3, 3, 3, channels, features),
                (1, *size, features),
            )
        ]
        print(f"{size}, {channels} to {features} channels")
        for name, form in FORMS.items():
            if name == "lax" and channels == 48:  # six seconds for a step
                continue
            alone, memory = measure(form, given, mapped=False)
            each, _ = measure(form, given, mapped=True)
            print(
                f"  {name:17} {alone:8.1f} ms {memory:6.0f} MB   mapped {each:8.1f} ms", flush=True
            )
        milliseconds = measure_torch(*given)
        if milliseconds is not None:
            print(f"  {'PyTorch':17} {milliseconds:8.1f} ms")


if __name__ == "__main__":
    main()
