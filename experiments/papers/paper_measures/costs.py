"""The formulas by which the FedGBO paper counts costs; `fa.count_flops` counts those of the code.

Mills et al., "Accelerating Federated Learning with a Global Biased Optimiser", IEEE Transactions
on Computers 2023, https://arxiv.org/abs/2108.09134: Tables I, VI, VII and VIII. It counts a model's
multiply-adds as the library Thop does, takes three times their number for the forward and backward
pass of one example, and adds a number of operations for each parameter and step of the optimiser.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax

from fedjax_algos.core import Batch, Problem
from fedjax_algos.models.language import Recurrent
from fedjax_algos.models.large.vision_transformer import SelfAttention, VisionTransformer
from fedjax_algos.models.layers.convolution import Conv, output_size, pads
from fedjax_algos.models.layers.shifted import DepthwiseConv
from fedjax_algos.models.layers.volumes import Conv3D


class PaperCosts(NamedTuple):
    """The costs of a client's round, as the FedGBO paper counts them; sizes in models, |x|.

    Attributes:
      download: arrays of the size of the model that a client downloads in a round.
      upload: likewise, that it uploads.
      memory: in a round, including what the client keeps between rounds.
      step_operations: C: for each parameter and local step.
      round_operations: for each parameter and round.
      step_gradients: batch gradients in each local step.
      full_gradients: gradients of all the client's examples in each round.
    """

    download: int
    upload: int
    memory: int
    step_operations: int
    round_operations: int = 0
    step_gradients: int = 1
    full_gradients: int = 0


_S = {"sgdm": 1, "rmsprop": 1, "adam": 2}  # |s| / |x|
_FIXED = {"sgdm": 5, "rmsprop": 5, "adam": 8}
_MOVING = {"sgdm": 8, "rmsprop": 5, "adam": 11}
_SGD = PaperCosts(1, 1, 1, 2)

# Tables I and VI. The paper's AdaptiveFedOpt stands for fedavgm to fedrmsprop. MimeXlite has the
# costs of FedGBO except for its upload: the paper leaves out its extra batch.
PUBLISHED_COSTS: dict[tuple[str, str | None], PaperCosts] = {
    **{(name, None): _SGD for name in ("fedavg", "fedmax", "fedavgm", "fedadam", "fedyogi")},
    **{(name, None): _SGD for name in ("fedadagrad", "fedrmsprop")},
    ("fedprox", None): PaperCosts(1, 1, 2, 5),
    **{("mfl", o): PaperCosts(1 + s, 1 + s, 1 + s, _MOVING[o]) for o, s in _S.items()},
    **{("fedgbo", o): PaperCosts(1 + s, 1, 1 + s, _FIXED[o]) for o, s in _S.items()},
    **{("mimexlite", o): PaperCosts(1 + s, 2, 2 + s, _FIXED[o]) for o, s in _S.items()},
    **{
        ("mimelite", o): PaperCosts(1 + s, 2, 2 + s, _FIXED[o], full_gradients=1)
        for o, s in _S.items()
    },
}

# Our derivations in the style of those tables: what is fixed in a round is computed once before it.
DERIVED_COSTS: dict[tuple[str, str | None], PaperCosts] = {
    ("mime", None): PaperCosts(2, 2, 3, 4, step_gradients=2, full_gradients=1),
    ("mimemom", None): PaperCosts(3, 2, 4, 6, step_gradients=2, full_gradients=1),
    ("mimelitemom", None): PaperCosts(2, 2, 3, 4, full_gradients=1),
    ("scaffold", None): PaperCosts(2, 2, 4, 5, 2),
    ("feddyn", None): PaperCosts(1, 1, 3, 7, 2),
    ("adabest", None): PaperCosts(1, 1, 2, 3, 3),
    ("fedcm", None): PaperCosts(2, 1, 2, 4, 1),
    ("ghbm", None): PaperCosts(2, 1, 2, 3, 1),
    ("localghbm", None): PaperCosts(1, 1, 3, 3, 2),
    ("fedhbm", None): PaperCosts(1, 1, 2, 5, 1),
    ("fedadc", None): PaperCosts(2, 1, 2, 3, 1),
    ("fednova", None): PaperCosts(1, 1, 1, 2),
    ("fedlga", None): PaperCosts(1, 1, 1, 2),
}


def paper_costs(algorithm: str, optimizer: str | None = None) -> PaperCosts:
    """The entry of an algorithm, with an optimizer for fedgbo, mfl, mimelite and mimexlite."""
    table = PUBLISHED_COSTS | DERIVED_COSTS
    if (algorithm, optimizer) not in table:
        optimizers = [str(o) for name, o in table if name == algorithm]
        known = f"optimizer={', '.join(optimizers)}" if optimizers else "an algorithm of the tables"
        raise ValueError(
            f"the tables have no costs of {algorithm!r} with optimizer={optimizer!r}; give {known}"
        )
    return table[algorithm, optimizer]


def paper_flops(
    costs: PaperCosts,
    macs: int,
    num_params: int,
    *,
    steps: int,
    batch_size: int,
    num_examples: float = 0,
) -> float:
    """Operations of a client's round by the FedGBO paper's equation 22, `K (B F + C |x|) + n F`.

    F is 3 * macs: the paper's tables need the factor 3, although the rule that it cites for F has
    6. The last term is for full gradients only. Second gradients in a step and operations once in a
    round are added in the same way; the paper's own algorithms have neither. Only full gradients
    need `num_examples`, n, the client's or the mean over clients.
    """
    if costs.full_gradients and num_examples <= 0:
        raise ValueError(f"num_examples={num_examples} is out of range; give a number above 0")
    example = 3 * macs
    step = costs.step_gradients * batch_size * example + costs.step_operations * num_params
    full = costs.full_gradients * num_examples * example
    return steps * step + full + costs.round_operations * num_params


def paper_upload(costs: PaperCosts, num_params: int, *, rounds: float, cohort_size: int) -> float:
    """Gigabytes (2^30 bytes) that all clients upload, as in the FedGBO paper's Table IV."""
    return rounds * cohort_size * costs.upload * num_params * 4 / 2**30


def paper_macs(problem: Problem, example: Batch) -> int:
    """Multiply-adds of one example's forward pass, as Thop counts them.

    - Convolution: kernel height * width * channels, plus 1 with a bias, for each output element.
    - Transposed convolution: kernel height * width * channels out, for each input element, plus 1
      with a bias for each output element. Thop takes the convolution's formula here, with the
      outputs that a stride adds.
    - Dense layer: inputs * outputs, without the bias.
    - Attention: 2 * tokens^2 * width, of both products; the dense layers count as such.
    - GRU layer of width h over i inputs: `3 ((h + i) h + 3 h) + 4 h` for each step in time; LSTM
      layer: `4 ((h + i) h + 3 h) + 4 h`; with and without biases.
    - Embeddings, positions, activations, normalisations, pooling and losses: 0.

    Depthwise and three-dimensional convolutions follow the rule of convolutions. Thop counts no
    products of attention, and 2 or 4 operations for each element that is normalised; without them,
    the numbers of networks for ImageNet are those of torchvision's table of weights. The example
    is arrays or shapes without a batch axis. Parameters outside of Linen modules are refused.
    """
    counted: dict[tuple[str, ...], int] = {}
    macs = 0

    def intercept(run, args, kwargs, context):
        nonlocal macs
        outputs = run(*args, **kwargs)
        module = context.module
        tree = module.variables.get("params", {}) if module.scope is not None else {}
        own = {name: leaf for name, leaf in tree.items() if not isinstance(leaf, Mapping)}
        has_rule = context.method_name == "__call__" and isinstance(module, SelfAttention)
        if has_rule or (own and context.method_name != "setup"):
            macs += _macs_of(module, context.method_name, own, args, outputs)
            counted[module.path] = sum(leaf.size for leaf in own.values())
        return outputs

    def forward(params, example, key):
        batch = jax.tree.map(lambda leaf: leaf[None], example)
        with nn.intercept_methods(intercept):
            return problem.apply(params, batch, key, False)[0]

    key = jax.eval_shape(jax.random.key, 0)
    model = jax.eval_shape(problem.init, key)
    jax.eval_shape(forward, model, example, key)
    num_params = sum(leaf.size for leaf in jax.tree.leaves(model.params))
    if sum(counted.values()) != num_params:
        raise ValueError(
            f"{num_params - sum(counted.values())} of the model's {num_params} parameters belong "
            "to no Linen module that is called; give a problem made by models.classifier"
        )
    return macs


def _macs_of(module, method, own, args, outputs):
    if isinstance(module, VisionTransformer):
        return 0  # in each of its methods: its own params are the class token and the positions
    rules = [rule for kind, rule in _RULES.items() if isinstance(module, kind)]
    if method != "__call__" or not rules:
        raise ValueError(
            f"{type(module).__name__}.{method} of the module {'/'.join(module.path)!r} has "
            f"parameters ({', '.join(own)}) but no rule; give it a rule in "
            "experiments/papers/paper_measures/costs.py"
        )
    return rules[0](module, own, args, outputs)


def _product(module, own, args, outputs):
    bias = "bias" in own and not isinstance(module, nn.Dense)
    return outputs.size * (math.prod(own["kernel"].shape[:-1]) + bias)


def _convolution(module, own, args, outputs):
    """Counts all outputs, including those that a pooling layer drops."""
    size, window = args[0].shape[1:3], own["kernel"].shape[:2]
    strides = module.strides
    strides = (strides, strides) if isinstance(strides, int) else strides
    whole = output_size(size, window, strides, pads(module.padding, size, window, strides))
    number = outputs.shape[0] * math.prod(whole) * outputs.shape[-1]
    return number * (math.prod(own["kernel"].shape[:-1]) + ("bias" in own))


def _transposed_convolution(module, own, args, outputs):
    """Each input is multiplied by the whole kernel, whatever the stride."""
    *window, first, second = own["kernel"].shape
    features = first if module.transpose_kernel else second
    return args[0].size * math.prod(window) * features + ("bias" in own) * outputs.size


def _attention(module, own, args, outputs):
    examples, tokens, width = args[0].shape
    return 2 * examples * tokens**2 * width


def _recurrent(module, own, args, outputs):
    (examples, times, inputs), h = args[0].shape, module.width
    gates = {"gru": 3, "lstm": 4}[module.cell]
    return examples * times * (gates * ((h + inputs) * h + 3 * h) + 4 * h)


def _nothing(module, own, args, outputs):
    return 0


_WITHOUT_PRODUCTS = (nn.Embed, nn.BatchNorm, nn.GroupNorm, nn.LayerNorm, nn.PReLU)
_RULES: dict[type[nn.Module], Callable[..., Any]] = {
    Conv: _convolution,
    **dict.fromkeys((nn.Conv, Conv3D, DepthwiseConv, nn.Dense), _product),
    nn.ConvTranspose: _transposed_convolution,
    Recurrent: _recurrent,
    SelfAttention: _attention,
    **dict.fromkeys(_WITHOUT_PRODUCTS, _nothing),
}
