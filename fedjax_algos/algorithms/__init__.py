"""The algorithms, one short file each, in families.

`algorithms` is the registry of the factories by name. A factory that is decorated with
`@algorithms.register` and imported here is available on the command line, and the shared tests run
it with the others.
"""

from fedjax_algos.algorithms.asynchronous.fedasync import fedasync
from fedjax_algos.algorithms.asynchronous.fedat import fedat
from fedjax_algos.algorithms.asynchronous.fedbuff import fedbuff
from fedjax_algos.algorithms.asynchronous.fedcompass import fedcompass
from fedjax_algos.algorithms.averaging.centralised import centralised
from fedjax_algos.algorithms.averaging.fedavg import fedavg
from fedjax_algos.algorithms.averaging.fedlga import fedlga
from fedjax_algos.algorithms.averaging.fedmax import fedmax
from fedjax_algos.algorithms.averaging.fednova import fednova
from fedjax_algos.algorithms.averaging.fedopt import (
    fedadagrad,
    fedadam,
    fedavgm,
    fedrmsprop,
    fedyogi,
)
from fedjax_algos.algorithms.averaging.fedprox import fedprox
from fedjax_algos.algorithms.averaging.qfedavg import qfedavg
from fedjax_algos.algorithms.control_variates.adabest import adabest
from fedjax_algos.algorithms.control_variates.feddyn import feddyn
from fedjax_algos.algorithms.control_variates.scaffold import scaffold
from fedjax_algos.algorithms.global_optimizers.fedgbo import fedgbo
from fedjax_algos.algorithms.global_optimizers.mfl import mfl
from fedjax_algos.algorithms.global_optimizers.mime import mime, mimemom
from fedjax_algos.algorithms.global_optimizers.mimelite import mimelite, mimelitemom, mimexlite
from fedjax_algos.algorithms.momentum.fedcm import fedcm
from fedjax_algos.algorithms.momentum.fedhbm import fedhbm
from fedjax_algos.algorithms.momentum.ghbm import fedadc, ghbm
from fedjax_algos.algorithms.momentum.localghbm import localghbm
from fedjax_algos.algorithms.personalised.apfl import apfl
from fedjax_algos.algorithms.personalised.ditto import ditto
from fedjax_algos.algorithms.personalised.fedbn import fedbn
from fedjax_algos.algorithms.personalised.fedrep import fedrep
from fedjax_algos.algorithms.personalised.ifca import ifca
from fedjax_algos.algorithms.personalised.perfedavg import perfedavg
from fedjax_algos.algorithms.personalised.pfedme import pfedme
from fedjax_algos.algorithms.registry import algorithms

__all__ = [
    "adabest",
    "algorithms",
    "apfl",
    "centralised",
    "ditto",
    "fedadagrad",
    "fedadam",
    "fedadc",
    "fedasync",
    "fedat",
    "fedavg",
    "fedavgm",
    "fedbn",
    "fedbuff",
    "fedcm",
    "fedcompass",
    "feddyn",
    "fedgbo",
    "fedhbm",
    "fedlga",
    "fedmax",
    "fednova",
    "fedprox",
    "fedrep",
    "fedrmsprop",
    "fedyogi",
    "ghbm",
    "ifca",
    "localghbm",
    "mfl",
    "mime",
    "mimelite",
    "mimelitemom",
    "mimemom",
    "mimexlite",
    "perfedavg",
    "pfedme",
    "qfedavg",
    "scaffold",
]
