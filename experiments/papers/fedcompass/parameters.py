"""Parameters by layer of FedCompass's two networks, for table_8.py and table_10.py."""

from collections.abc import Callable

import jax

from fedjax_algos.core import Problem


def parameters(problem: Problem) -> dict[str, int]:
    """Number of parameters of each layer or block of the network."""
    counts: dict[str, int] = {}
    params = problem.init(jax.random.key(0)).params
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        names = [key.key for key in path]
        layer = "/".join(names[:2]) if names[0].startswith("Perceptron") else names[0]
        counts[layer] = counts.get(layer, 0) + leaf.size
    return counts


def rows_of(layers: dict[str, str], model: Callable[..., Problem], shape: tuple) -> list[tuple]:
    """The rows of the counts, named as in the paper.

    Args:
      layers: what each layer of the paper is called in the network.
      model: the network.
      shape: of one image.
    """
    counts = parameters(model(shape, 10))
    if sorted(layers.values()) != sorted(counts):
        raise ValueError(f"the network has {sorted(counts)}")
    found = {layer: counts[module] for layer, module in layers.items()}
    found["all"] = sum(counts.values())
    return [(layer, model.__name__, "parameters", 0, count) for layer, count in found.items()]
