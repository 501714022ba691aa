"""Wrappers: what happens to the updates of any algorithm on their way to its server rule.

A wrapper is a function from an algorithm to an algorithm. It changes what clients send (and the
`decode` with which the server opens it) or what they receive, or puts an estimate in place of what
has arrived.
"""

from fedjax_algos.wrappers.compression.cast import cast
from fedjax_algos.wrappers.compression.codec import Codec
from fedjax_algos.wrappers.compression.compress import (
    CatchUp,
    Direction,
    Feedback,
    Scope,
    codec,
    codecs,
    compress,
)
from fedjax_algos.wrappers.compression.feedback import mifa
from fedjax_algos.wrappers.compression.fetchsgd import fetchsgd
from fedjax_algos.wrappers.compression.powersgd import powersgd
from fedjax_algos.wrappers.compression.quantised import klevel, natural, qsgd, terngrad
from fedjax_algos.wrappers.compression.rotated import drive, eden
from fedjax_algos.wrappers.compression.signs import majority, scaled_sign, sparse_ternary
from fedjax_algos.wrappers.compression.sparse import randk, topk
from fedjax_algos.wrappers.identity import identity
from fedjax_algos.wrappers.mean import mean
from fedjax_algos.wrappers.optimal_client_sampling import optimal_client_sampling
from fedjax_algos.wrappers.registry import wrap, wrappers
from fedjax_algos.wrappers.replay import replay
from fedjax_algos.wrappers.reweighted import Losses, afl, reweighted, superquantile, term
from fedjax_algos.wrappers.selection.active import active
from fedjax_algos.wrappers.selection.oort import oort
from fedjax_algos.wrappers.selection.power_of_choice import power_of_choice

__all__ = [
    "CatchUp",
    "Codec",
    "Direction",
    "Feedback",
    "Losses",
    "Scope",
    "active",
    "afl",
    "cast",
    "codec",
    "codecs",
    "compress",
    "drive",
    "eden",
    "fetchsgd",
    "identity",
    "klevel",
    "majority",
    "mean",
    "mifa",
    "natural",
    "oort",
    "optimal_client_sampling",
    "power_of_choice",
    "powersgd",
    "qsgd",
    "randk",
    "replay",
    "reweighted",
    "scaled_sign",
    "sparse_ternary",
    "superquantile",
    "term",
    "terngrad",
    "topk",
    "wrap",
    "wrappers",
]
