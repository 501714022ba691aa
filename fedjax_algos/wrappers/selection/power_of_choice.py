"""Power of choice: selects the candidates with the largest loss."""

import jax.numpy as jnp

from fedjax_algos.core import Algorithm
from fedjax_algos.wrappers.refusals import check_order
from fedjax_algos.wrappers.registry import wrappers
from fedjax_algos.wrappers.selection.values import Candidates, Loss, chosen_by_loss


@wrappers.register
def power_of_choice(
    algorithm: Algorithm, *, candidates: Candidates = 2.0, loss: Loss = "full"
) -> Algorithm:
    """Selects the M clients with the largest local loss `F_i(x)` from d candidates.

    Candidates download x, the server's model, and report their loss; in a tie the smaller ids
    are chosen. The paper draws candidates in proportion to their examples (the sampler `by_size`)
    and takes the uniform mean of the chosen (`weighting=uniform`). Clients with a large loss are
    preferred, so the model converges to another point than the minimum of the mean loss.

    Cho et al., "Client Selection in Federated Learning: Convergence Analysis and Power-of-Choice
    Selection Strategies", https://arxiv.org/abs/2010.01243.

    Args:
      algorithm: the algorithm to wrap; selection is the last wrapper.
      candidates: d/M, at least 1; d is rounded up. With 1 all candidates are chosen.
      loss: "full" is the mean over all of the client's examples (pow-d), "batch" the mean over one
        batch of the size of the local ones, drawn with replacement (cpow-d), and "last" the mean of
        the client's last local update (rpow-d), which needs no report; clients that have not
        trained yet are chosen first.

    Raises:
      ValueError: for an algorithm with a selection. In rounds, also for more candidates than
        clients, for encoded broadcasts, or for sharded examples.
    """
    check_order("power_of_choice", algorithm)

    def choose(losses, dispatches, answered, cohort_size, seed):
        order = jnp.lexsort((dispatches.client, -losses, ~answered))
        return order[:cohort_size].astype(jnp.int32)

    return chosen_by_loss(algorithm, loss, candidates, choose)
