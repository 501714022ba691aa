"""The matrix product of which convolutions consist."""

import jax


@jax.custom_vjp
def multiply(rows: jax.Array, weights: jax.Array) -> jax.Array:
    """`rows @ weights`, with another order of the products in its gradient.

    Args:
      rows: float[n, k].
      weights: float[k, m].
    """
    return rows @ weights


def _multiply_forward(rows, weights):
    return multiply(rows, weights), (rows, weights)


def _multiply_backward(residuals, gradient):
    """The gradient of `@`, except for the order of the product for the weights.

    With the longer side last, a CPU is 1.5 times as fast; and if the order is left to XLA, it
    transposes the gradient of all rows first.
    """
    rows, weights = residuals
    over_rows = (((0,), (0,)), ((), ()))
    if rows.shape[1] <= gradient.shape[1]:
        to_weights = jax.lax.dot_general(rows, gradient, over_rows)
    else:
        wide = jax.lax.dot_general(gradient, rows, over_rows)
        to_weights = jax.lax.optimization_barrier(wide).T  # without it XLA restores the other order
    return gradient @ weights.T, to_weights


multiply.defvjp(_multiply_forward, _multiply_backward)
