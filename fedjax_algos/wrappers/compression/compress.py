"""Adds a codec to any algorithm: its clients, or its server, send encoded vectors.

The algorithm's own `contribute` and `server_update` see vectors as before. Bytes are counted for
the encoded messages.

Downwards, clients start from the decoded vectors, so their updates are differences to these. The
server keeps the exact params, and they are evaluated. With v of the broadcast and v^ at the
clients, "ef21" sends `c = C(v - v^)`, and then `v^ += c` (EF21-P). In the first round v^ is v.
"""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, get_args

import jax.numpy as jnp

from fedjax_algos.base.errors import require
from fedjax_algos.core import Algorithm, Mean
from fedjax_algos.core.options import check_choice
from fedjax_algos.core.registry import Registry
from fedjax_algos.core.trees import sent_bytes
from fedjax_algos.wrappers.compose import add
from fedjax_algos.wrappers.compression import feedback as memories
from fedjax_algos.wrappers.compression.coding import Codec, Coding, Scope, unchanged
from fedjax_algos.wrappers.compression.feedback import Feedback
from fedjax_algos.wrappers.registry import wrappers
from fedjax_algos.wrappers.stages import OBSERVE, ClientStage, Down, Sent

__all__ = ["CatchUp", "Direction", "Feedback", "Scope", "codec", "codecs", "compress"]
Direction = Literal["up", "down"]
CatchUp = Literal["sum", "full"]
codecs = Registry[Codec]("codec", Codec)


def compress(
    name: str,
    algorithm: Algorithm,
    codec: Codec,
    *,
    feedback: Feedback = "none",
    scope: Scope = "part",
    measure_size: bool = False,
    direction: Direction = "up",
    catch_up: CatchUp = "sum",
) -> Algorithm:
    """Makes clients send the vectors of their updates encoded by a codec.

    With direction="down" the server encodes the vectors of its broadcasts instead. In an algorithm
    with a prelude both exchanges are encoded. Counts and choices are sent unchanged. Statistics of
    the model, which the engine averages, are not encoded.

    Args:
      name: the wrapper's name, for messages and random numbers.
      algorithm: the algorithm to wrap.
      codec: the encoding of one vector. It works in float32.
      feedback: a client's memory of each vector: nothing ("none"), what was lost ("ef"), or what
        the server knows of it ("ef21" and, with an unbiased codec, "diana"). Downwards only "none"
        and "ef21" are allowed; "ef21" sends the difference to the vectors that all clients hold.
      scope: one vector: all leaves of a part of the update together ("part"), or each leaf by
        itself ("leaf").
      measure_size: whether the training metrics have `coded_bytes_per_upload`, the mean size of an
        upload if it had an entropy code. With several codecs, set it for the last one.
      direction: whether updates are encoded ("up"), or broadcasts ("down").
      catch_up: a client's download after missed rounds, downwards with "ef21": the messages of
        these rounds, unless the vectors themselves are smaller ("sum"), or the vectors ("full").

    Raises:
      ValueError: for an unknown value of an option, a feedback that does not fit the algorithm or
        the codec, a codec of leaves with another scope, or a size that is not measured.
    """
    check_choice("feedback", feedback, get_args(Feedback))
    check_choice("scope", scope, get_args(Scope))
    check_choice("direction", direction, get_args(Direction))
    check_choice("catch_up", catch_up, get_args(CatchUp))
    fits = scope == "leaf" or not codec.of_leaves
    require(fits, f"{name}: scope={scope} has no matrices; give scope=leaf")
    options = f"direction={direction}, feedback={feedback}, catch_up={catch_up} and measure_size="
    fits = catch_up == "sum"
    if direction == "down":
        fits = (feedback == "ef21" or (feedback == "none" and fits)) and not measure_size
    fix = "downwards give feedback=none or ef21 and no measure_size; catch_up is for ef21 downwards"
    require(fits, f"{name}: {options}{measure_size} do not fit together; {fix}")
    coding = Coding(codec, scope)
    if direction == "down":
        return _downwards(name, algorithm, coding, feedback, catch_up)
    wrapped, exact = algorithm, codec is unchanged and feedback in ("none", "ef")
    if feedback != "none" and not exact:
        stage, rule, needs = memories.remembered(name, coding, feedback)
        what, fix = f"{name}: feedback={feedback}", f"give feedback={'ef or ' * bool(rule)}none"
        wrapped = add(what, algorithm, client=[stage], rule=rule, needs=needs, fix=fix)
    elif not exact:
        wrapped = add(name, algorithm, client=[coded(name, coding)])
    if not measure_size:
        return wrapped
    size = sent_bytes if exact else coding.coded_bytes

    def measure(vectors, own, client):
        total = jnp.float32(size(client.message) + sent_bytes(client.rest))
        return Sent(metrics={"coded_bytes_per_upload": Mean(total, jnp.float32(1))})

    stage = ClientStage(f"size of {name}", measure, place=OBSERVE)
    name = f"{name}: measure_size=True"
    return add(name, wrapped, client=[stage], needs=["one exchange"], fix="leave it out")


def _downwards(name, algorithm, coding, feedback, catch_up):
    if feedback == "none":
        down = Down(name, coding.encode, coding.decode)
        return algorithm if coding.codec is unchanged else add(name, algorithm, down=down)
    what = f"{name}: direction=down with feedback={feedback}"
    memories.check_codec(what, coding.codec, feedback)
    coding = coding._replace(codec=memories.contractive(coding.codec))
    down = Down(name, coding.encode, coding.decode, held=True, catch_up=catch_up)
    return add(what, algorithm, down=down, needs=["one exchange"], fix="give feedback=none")


def coded(name: str, coding: Coding) -> ClientStage:
    """Makes the stage of a codec without memory."""

    def apply(vectors, own, client):
        return Sent(coding.encode(client.key, vectors))

    return ClientStage(name, apply, coding.decode)


def codec(factory: Callable[..., Codec], *, scope: Scope = "part") -> Callable[..., Algorithm]:
    """Decorates a function that makes a codec: returns a wrapper with the function's name.

    The wrapper has the options of the function and of `compress`, with their descriptions.

    Args:
      factory: `(*, options) -> Codec`, with its options described under `Args:`.
      scope: the default of the option `scope`.
    """
    name = factory.__name__
    own = inspect.signature(factory, eval_str=True).parameters.values()
    common = inspect.signature(compress).parameters
    shared = {each.name: each for each in common.values() if each.kind is each.KEYWORD_ONLY}
    shared["scope"] = shared["scope"].replace(default=scope)

    def wrapper(algorithm: Algorithm, **options: Any) -> Algorithm:
        arguments = {each: options.pop(each) for each in shared if each in options}
        return compress(name, algorithm, factory(**options), **{"scope": scope, **arguments})

    parameters = [common["algorithm"], *own, *shared.values()]
    wrapper.__name__ = wrapper.__qualname__ = name
    wrapper.__module__ = factory.__module__
    wrapper.__annotations__ = {each.name: each.annotation for each in parameters}
    wrapper.__annotations__["return"] = Algorithm
    wrapper.__dict__["__signature__"] = inspect.Signature(parameters, return_annotation=Algorithm)
    wrapper.__doc__ = _described(factory)
    return wrapper


def register(factory: Callable[..., Codec] | None = None, *, scope: Scope = "part") -> Any:
    """Decorates a function that makes a codec: registers the codec and its wrapper."""
    if factory is None:
        return partial(register, scope=scope)
    return wrappers.register(codec(codecs.register(factory), scope=scope))


def _described(factory):
    """Joins the docstrings of the codec and of the options of `compress`."""
    rule, _, own = inspect.cleandoc(factory.__doc__ or "").partition("\n\nArgs:\n")
    text = inspect.cleandoc(compress.__doc__ or "")
    shared = text[text.index("  feedback: ") :]
    lines = [rule, "", "Args:", "  algorithm: the algorithm to wrap.", *[own] * bool(own), shared]
    return "\n".join(lines)
