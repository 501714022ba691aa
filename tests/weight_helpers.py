"""Weights by a formula of name and shape, the same with PyTorch and without it; their names."""

import math
import zlib

import jax
import numpy as np

LEAVES = {"kernel": "weight", "scale": "weight", "mean": "running_mean", "var": "running_var"}


def numbers(name, shape):
    """float64 in [0, 1), by a hash of the name and of the index."""
    k = np.arange(math.prod(shape), dtype=np.uint64) + (np.uint64(zlib.crc32(name.encode())) << 32)
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        k = (k ^ (k >> np.uint64(33))) * np.uint64(factor)
    return ((k >> np.uint64(40)) / 2**24).reshape(shape)


def tensor(name, shape):
    """float32: kernels U(-b, b) with b^2 = 6 / fan in; the rest is neither 0 nor 1."""
    uniform = numbers(name, shape)
    if len(shape) > 1:
        value = (2 * uniform - 1) * (6 / math.prod(shape[1:])) ** 0.5
    elif name.endswith(("weight", "running_var")):
        value = 0.5 + uniform
    else:
        value = uniform - 0.5
    return value.astype(np.float32)


def torch_shapes(problem, names, reshaped):
    """The shapes of all tensors by PyTorch's names; `reshaped` has converted ones by their end."""
    model = jax.eval_shape(problem.init, jax.random.key(0))
    trees = model.params, dict(model.statistics or {}).get("batch_stats", {})
    found = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(trees):
        *modules, last = parts = [entry.key for entry in path[1:]]
        name = names.get("/".join(parts))
        if name is None:
            places = ("/".join(modules[:end]) for end in range(len(modules), 0, -1))
            module = next(names[place] for place in places if place in names)
            name = f"{module}.{LEAVES.get(last, last)}"
        elif isinstance(name, tuple):
            name = name[0]
        shape = leaf.shape[:-3:-1] + leaf.shape[:-2] if last == "kernel" else leaf.shape
        found[name] = next((own for end, own in reshaped.items() if name.endswith(end)), shape)
        if last == "mean":
            found[name.replace("running_mean", "num_batches_tracked")] = ()
    return found
