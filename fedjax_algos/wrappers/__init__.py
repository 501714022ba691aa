"""Wrappers change the updates of any algorithm on their way to its server rule.

A wrapper is a function from an algorithm to an algorithm. It adds stages. A stage changes what
clients send or receive, changes updates on the server, or replaces all updates by one estimate.
"""

from fedjax_algos.wrappers.compose import add as add
from fedjax_algos.wrappers.compression.coding import Codec as Codec
from fedjax_algos.wrappers.compression.compress import CatchUp as CatchUp
from fedjax_algos.wrappers.compression.compress import Direction as Direction
from fedjax_algos.wrappers.compression.compress import Feedback as Feedback
from fedjax_algos.wrappers.compression.compress import Scope as Scope
from fedjax_algos.wrappers.compression.compress import codec as codec
from fedjax_algos.wrappers.compression.compress import codecs as codecs
from fedjax_algos.wrappers.compression.compress import compress as compress
from fedjax_algos.wrappers.compression.feedback import mifa as mifa
from fedjax_algos.wrappers.compression.fetchsgd import fetchsgd as fetchsgd
from fedjax_algos.wrappers.compression.powersgd import powersgd as powersgd
from fedjax_algos.wrappers.compression.quantised import cast as cast
from fedjax_algos.wrappers.compression.quantised import klevel as klevel
from fedjax_algos.wrappers.compression.quantised import natural as natural
from fedjax_algos.wrappers.compression.quantised import qsgd as qsgd
from fedjax_algos.wrappers.compression.quantised import terngrad as terngrad
from fedjax_algos.wrappers.compression.rotated import drive as drive
from fedjax_algos.wrappers.compression.rotated import eden as eden
from fedjax_algos.wrappers.compression.signs import majority as majority
from fedjax_algos.wrappers.compression.signs import scaled_sign as scaled_sign
from fedjax_algos.wrappers.compression.signs import sparse_ternary as sparse_ternary
from fedjax_algos.wrappers.compression.sparse import randk as randk
from fedjax_algos.wrappers.compression.sparse import topk as topk
from fedjax_algos.wrappers.optimal_client_sampling import (
    optimal_client_sampling as optimal_client_sampling,
)
from fedjax_algos.wrappers.privacy.accounting import Accountant as Accountant
from fedjax_algos.wrappers.privacy.accounting import Sampling as Sampling
from fedjax_algos.wrappers.privacy.accounting import accountant_of as accountant_of
from fedjax_algos.wrappers.privacy.accounting import noise_for as noise_for
from fedjax_algos.wrappers.privacy.central import correlated_gaussian as correlated_gaussian
from fedjax_algos.wrappers.privacy.central import gaussian as gaussian
from fedjax_algos.wrappers.privacy.central import laplace as laplace
from fedjax_algos.wrappers.privacy.local import local_gaussian as local_gaussian
from fedjax_algos.wrappers.registry import wrap as wrap
from fedjax_algos.wrappers.registry import wrappers as wrappers
from fedjax_algos.wrappers.reweighted import Losses as Losses
from fedjax_algos.wrappers.reweighted import afl as afl
from fedjax_algos.wrappers.reweighted import reweighted as reweighted
from fedjax_algos.wrappers.reweighted import superquantile as superquantile
from fedjax_algos.wrappers.reweighted import term as term
from fedjax_algos.wrappers.secure_sum import secure_sum as secure_sum
from fedjax_algos.wrappers.secure_sum import secure_sum_bits as secure_sum_bits
from fedjax_algos.wrappers.selection.by_loss import active as active
from fedjax_algos.wrappers.selection.by_loss import power_of_choice as power_of_choice
from fedjax_algos.wrappers.selection.oort import oort as oort
from fedjax_algos.wrappers.stages import Client as Client
from fedjax_algos.wrappers.stages import ClientStage as ClientStage
from fedjax_algos.wrappers.stages import Cohort as Cohort
from fedjax_algos.wrappers.stages import Down as Down
from fedjax_algos.wrappers.stages import Facts as Facts
from fedjax_algos.wrappers.stages import Release as Release
from fedjax_algos.wrappers.stages import Rule as Rule
from fedjax_algos.wrappers.stages import Sent as Sent
from fedjax_algos.wrappers.stages import ServerStage as ServerStage
from fedjax_algos.wrappers.stages import Summed as Summed
from fedjax_algos.wrappers.templates import identity as identity
from fedjax_algos.wrappers.templates import mean as mean
