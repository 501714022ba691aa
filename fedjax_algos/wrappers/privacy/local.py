"""Local differential privacy: each client adds noise to its own update before it sends it."""

import jax
import jax.numpy as jnp
import optax

from fedjax_algos.core import Algorithm, Mean
from fedjax_algos.core.options import NonNegative, Positive, Proportion
from fedjax_algos.core.trees import scale
from fedjax_algos.wrappers.compose import add
from fedjax_algos.wrappers.privacy.bounds import gaussian_noise
from fedjax_algos.wrappers.privacy.central import NEEDS, ClipBy, check_one, clipped
from fedjax_algos.wrappers.registry import wrappers
from fedjax_algos.wrappers.stages import CLIP, ClientStage, Release, Sent


@wrappers.register
def local_gaussian(
    algorithm: Algorithm,
    *,
    clip: Positive,
    noise: NonNegative | None = None,
    epsilon: Positive | None = None,
    delta: Proportion = 1e-5,
    by: ClipBy = "update",
    ratio: Positive = 1.0,
) -> Algorithm:
    """Clients send `min(1, C / |u_i|) u_i + z C N(0, I)`, so that the server may read it.

    Any two updates of a client differ by 2 C at most, so one message costs what a Gaussian release
    with the multiplier z / 2 costs. The column `epsilon` is for the client that has been dispatched
    most often. Any sampler may draw the cohorts. The noise in a mean of M updates is sqrt(M) times
    larger than with the wrapper `gaussian`.

    Args:
      algorithm: the algorithm to wrap.
      clip: C, above 0.
      noise: z, the noise multiplier. Give it or `epsilon`; 0 clips only, and epsilon is infinite.
      epsilon: what one message may cost; z is then computed exactly (Balle and Wang).
      delta: the delta of epsilon.
      by, ratio: as in `gaussian`.

    Raises:
      ValueError: for an algorithm whose clients send models, counts or a choice, or twice in a
        round; for a model with statistics.
    """
    check_one("local_gaussian", noise, epsilon)
    multiplier = 2 * gaussian_noise(epsilon, delta) if epsilon is not None else noise

    def apply(vectors, own, client):
        shorter, longer = clipped(vectors, clip, by=by, ratio=ratio)
        share = Mean(longer.astype(jnp.float32), jnp.float32(1))
        if multiplier:
            drawn = optax.tree.random_like(client.key, shorter, jax.random.normal)
            shorter = jax.tree.map(jnp.add, shorter, scale(multiplier * clip, drawn))
        message = shorter[:1] + [scale(ratio, tree) for tree in shorter[1:]]
        return Sent(message, metrics={"clipped": share})

    private = Release("gaussian", (multiplier or 0) / 2, delta)
    stage = ClientStage("local_gaussian", apply, place=CLIP, private=private)
    return add("local_gaussian", algorithm, client=[stage], needs=NEEDS)
