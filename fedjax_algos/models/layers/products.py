"""The matrix product that convolutions are made of."""

import jax


@jax.custom_vjp
def multiply(rows: jax.Array, weights: jax.Array) -> jax.Array:
    """`rows @ weights`, float[n, k] by float[k, m], with another order in its gradient."""
    return rows @ weights


def _multiply_forward(rows, weights):
    return multiply(rows, weights), (rows, weights)


def _multiply_backward(residuals, gradient):
    """As `@` has it, but for the order in which the gradient of the weights is multiplied.

    With the longer side last a CPU is half as fast again; and where `@` leaves the order to XLA, it
    transposes the gradient of all rows first.
    """
    rows, weights = residuals
    over_rows = (((0,), (0,)), ((), ()))
    if rows.shape[1] <= gradient.shape[1]:
        to_weights = jax.lax.dot_general(rows, gradient, over_rows)
    else:
        wide = jax.lax.dot_general(gradient, rows, over_rows)
        to_weights = jax.lax.optimization_barrier(wide).T  # without it XLA swaps them back
    return gradient @ weights.T, to_weights


multiply.defvjp(_multiply_forward, _multiply_backward)
