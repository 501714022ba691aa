"""Wrappers: what happens to the updates of any algorithm on their way to its server rule.

A wrapper is a function from an algorithm to an algorithm. It adds stages that change what clients
send or receive, what the server makes of it, or the rule that puts an estimate in its place.
"""

from fedjax_algos.wrappers.compose import add
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
from fedjax_algos.wrappers.reweighted import Losses, afl, reweighted, superquantile, term
from fedjax_algos.wrappers.selection.active import active
from fedjax_algos.wrappers.selection.oort import oort
from fedjax_algos.wrappers.selection.power_of_choice import power_of_choice
from fedjax_algos.wrappers.stages import (
    Client,
    ClientStage,
    Cohort,
    Down,
    Facts,
    Rule,
    Sent,
    ServerStage,
    Summed,
)

__all__ = [
    "CatchUp",
    "Client",
    "ClientStage",
    "Codec",
    "Cohort",
    "Direction",
    "Down",
    "Facts",
    "Feedback",
    "Losses",
    "Rule",
    "Scope",
    "Sent",
    "ServerStage",
    "Summed",
    "active",
    "add",
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
