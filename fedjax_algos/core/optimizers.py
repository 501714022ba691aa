"""The clients' optimisers by name: optax's optimisers without their learning rates.

An optimiser of optax holds a learning rate and the sign of descent. We call it with the rate -1,
so it returns the direction that `y <- y - learning_rate * direction` needs. This is right if the
update is proportional to the rate, which excludes fromage, optimistic_adam and rprop. We also leave
out lbfgs and polyak_sgd, which need the loss, sm3, which takes no scalars, and noisy_sgd, which
would repeat its noise in each local update.

Some optimisers are from `optax.contrib`, where muon is for matrices and uses Adam for all other
arrays. We call them with the rate 1 and change the sign, because prodigy estimates its own rate.
Of that module, sophia and momo need the loss. The schedule-free optimisers step with one model and
report another one, which a client would have to send.
"""

import functools
import inspect
import weakref
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedjax_algos.base.errors import require
from fedjax_algos.core.checks import check_callable, check_kind
from fedjax_algos.core.options import Count, Decay, NonNegative, Range, options
from fedjax_algos.core.registry import Registry
from fedjax_algos.core.specs import spec_of
from fedjax_algos.core.types import Local, Problem

PLAIN = "sgd"  # the client optimiser that is the gradient itself

_OFFERED = (
    "adabelief adadelta adafactor adagrad adam adamax adamaxw adamw adan amsgrad lamb lars lion "
    "novograd optimistic_adam_v2 optimistic_gradient_descent radam rmsprop sgd sign_sgd signum yogi"
)
_CONTRIBUTED = "acprop ademamix adopt dog dowg muon prodigy simplified_ademamix"
_STEPS = 32  # of the probe; a transformation that returns only zeros in them passes
_SCALE = 100.0  # of the gradient of the probe, so that additions such as noise are small
_ROUNDING = 1e-3  # relative; anything nearer to 0 has no sign
# update functions that passed the probe; it starts with the default of `Local`
_PROBED: weakref.WeakSet[Any] = weakref.WeakSet({Local._field_defaults["transform"].update})
_DECAYS = {"b1", "b2", "b3", "beta", "decay", "decay_rate", "momentum", "rho"}
_OPTIONAL = Decay | None
client_optimizers: Registry[optax.GradientTransformation] = Registry(
    "client optimiser", optax.GradientTransformation
)


def _offer(name: str, module: Any = optax) -> None:
    """Registers an optimiser of optax, with its options that are numbers or bools."""
    optimizer = getattr(module, name)
    parameters = inspect.signature(optimizer).parameters.values()
    types = {each.name: kind for each in parameters if (kind := _type(each)) is not None}
    offered = [each for each in parameters if each.name in types]

    def factory(**values: Any) -> optax.GradientTransformation:
        without = types.get("momentum") == _OPTIONAL and values.get("momentum") is None
        fix = "nesterov=true needs a momentum; give momentum=0.9 too"
        require(not (without and values.get("nesterov")), f"{name}: {fix}")
        if module is optax:
            return optimizer(learning_rate=-1.0, **values)
        return optax.chain(optimizer(learning_rate=1.0, **values), optax.scale(-1.0))

    factory.__name__ = factory.__qualname__ = name
    factory.__annotations__ = types
    keywords = [p.replace(kind=p.KEYWORD_ONLY, annotation=types[p.name]) for p in offered]
    factory.__dict__["__signature__"] = inspect.Signature(keywords)
    entries = "".join(f"\n  {option}: as in `{module.__name__}.{name}`." for option in types)
    first_line = str(inspect.getdoc(optimizer)).splitlines()[0].rstrip(".")
    factory.__doc__ = f"{first_line}, without its rate.\n" + f"\nArgs:{entries}\n" * bool(entries)
    client_optimizers.register(factory)


def _type(parameter: inspect.Parameter) -> Any:
    """Returns the type of an optax option by its default; None if no text can express it."""
    name, default = parameter.name, parameter.default
    if name == "learning_rate":
        return None
    if name == "momentum" and default is None:
        return _OPTIONAL
    if isinstance(default, bool):
        return None if name.endswith("mask") else bool
    if isinstance(default, int):
        return Count if default else Annotated[int, Range(0)]
    if isinstance(default, float):
        return Decay if name in _DECAYS and default < 1 else NonNegative
    return None


for _module, _names in ((optax, _OFFERED), (optax.contrib, _CONTRIBUTED)):
    for _name in _names.split():
        if hasattr(_module, _name):  # a few are younger than the oldest optax that is allowed
            _offer(_name, _module)


def client_optimizer(spec: str) -> optax.GradientTransformation:
    """Returns the optimiser of a client's local steps, for `Local.transform`.

    It has no learning rate, because `Local.learning_rate` applies. Its state starts anew in each
    local update. Equal texts give the same object.

    Args:
      spec: the name of an optimiser of optax with its options, as in "adam:b1=0.8"; or your own
        function, `FILE.py:NAME` or `package.module:NAME`, which has only keyword-only parameters
        and returns an optax transformation without a learning rate.

    Raises:
      TypeError: if `spec` is not a text.
      ValueError: for an unknown name or option, a value out of range, or a learning rate.
    """
    check_kind("client_optimizer", spec, str, 'give a text such as "adam:b1=0.9"')
    name, values = parse_optimizer(spec)
    return _made(name, frozenset(values.items()))


def parse_optimizer(spec: str) -> tuple[str, dict[str, Any]]:
    """Returns the name and the options of an optimiser, which must not hold the rate."""
    fix = "give client_learning_rate, in a method before client_optimizer"
    require("learning_rate=" not in spec, f"client_optimizer={spec!r} has a learning rate; {fix}")
    return client_optimizers.parse(spec)


@functools.lru_cache(maxsize=1024)
def _made(name, values):
    if name == PLAIN and not values:
        return optax.identity()
    return client_optimizers[name](**dict(values))


def canonical(spec: str) -> str:
    """Normalises the spec of an optimiser: names all options and leaves out the defaults."""
    name, values = parse_optimizer(spec)
    known = options(client_optimizers[name])
    changed = {n: values[n] for n, o in known.items() if values.get(n, o.default) != o.default}
    return spec_of(name, changed)


@functools.lru_cache(maxsize=1024)
def local_transform(spec: str, clip_norm: float, decay: float) -> optax.GradientTransformation:
    """Chains clipping, weight decay and an optimiser in this order, as torch's SGD does."""
    optimizer = client_optimizer(spec)
    transforms = [optax.clip_by_global_norm(clip_norm)] * (clip_norm > 0)
    transforms += [optax.add_decayed_weights(decay)] * (decay > 0)
    if optimizer is client_optimizer(PLAIN):
        return trusted(optax.chain(*transforms) if transforms else optimizer)
    return optax.chain(*transforms, optimizer) if transforms else optimizer


def check_transform(name: str, transform: optax.GradientTransformation, problem: Problem) -> None:
    """Checks that a transformation does not turn descent into ascent, as `optax.adam(0.1)` would.

    We call it with a gradient g and with -g, in small arrays. The difference of the results must
    not point against g in any array. If the call fails or is traced, the transformation passes.
    """
    fix = "give a transformation without a learning rate, such as optax.scale_by_adam()"
    init, update = getattr(transform, "init", None), getattr(transform, "update", None)
    check_callable(f"{name}.init", init, fix, "params")
    check_callable(f"{name}.update", update, fix, "updates", "state", "params")
    if update in _PROBED:
        return
    try:
        with jax.ensure_compile_time_eval():
            sign = _sign(transform, problem)
    except Exception:  # the transformation needs more than gradients, or the problem fails
        return
    found = f"{name} points against the gradient, because it has a learning rate and its sign"
    require(sign >= 0, f"{found}; {fix}")
    _PROBED.add(transform.update)


def trusted(transform: optax.GradientTransformation) -> optax.GradientTransformation:
    """Exempts a transformation of this package from `check_transform`, and returns it."""
    _PROBED.add(transform.update)
    return transform


def _sign(transform, problem):
    """Returns -1 if the transformation points against the gradient in an array, else 1 or 0."""
    shapes = problem.shapes().params
    params = jax.tree.map(lambda leaf: np.zeros((2,) * leaf.ndim, np.float32), shapes)

    def ramp(leaf):  # entries differ, so that centring does not remove them
        return _SCALE * (1 + np.arange(leaf.size, dtype=np.float32).reshape(leaf.shape))

    gradient = jax.tree.map(ramp, params)

    @jax.jit
    def update(states):  # the next results for the gradient and for its opposite
        pairs = []
        for sign, state in zip((1.0, -1.0), states or [transform.init(params)] * 2, strict=True):
            given = jax.tree.map(lambda leaf, sign=sign: jnp.asarray(sign * leaf), gradient)
            pairs.append(transform.update(given, state, jax.tree.map(jnp.asarray, params)))
        return tuple(zip(*pairs, strict=True))

    states = None
    for _ in range(_STEPS):
        moves, states = update(states)
        leaves = zip(*map(jax.tree.leaves, (gradient, *moves)), strict=True)
        found = [_alignment(*map(np.asarray, each)) for each in leaves]
        if any(found):
            return min(found)
    return 0


def _alignment(gradient, forward, backward):
    """Returns the sign of <T(g) - T(-g), g> in an array; 0 within rounding."""
    size = np.linalg.norm(gradient) * (np.linalg.norm(forward) + np.linalg.norm(backward))
    product = np.vdot(forward - backward, gradient)
    return int(np.sign(product)) if abs(product) > _ROUNDING * size else 0
