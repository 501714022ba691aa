"""The algorithms, in families, with one short file for each.

`algorithms` is the registry of factories by name. Decorate a factory with `@algorithms.register`
and import it here: the command line then offers it, and the shared tests run it.
"""

from fedjax_algos.algorithms.asynchronous.fedasync import fedasync as fedasync
from fedjax_algos.algorithms.asynchronous.fedat import fedat as fedat
from fedjax_algos.algorithms.asynchronous.fedbuff import fedbuff as fedbuff
from fedjax_algos.algorithms.asynchronous.fedcompass import fedcompass as fedcompass
from fedjax_algos.algorithms.averaging.centralised import centralised as centralised
from fedjax_algos.algorithms.averaging.fedavg import fedavg as fedavg
from fedjax_algos.algorithms.averaging.fedlga import fedlga as fedlga
from fedjax_algos.algorithms.averaging.fedmax import fedmax as fedmax
from fedjax_algos.algorithms.averaging.fednova import fednova as fednova
from fedjax_algos.algorithms.averaging.fedopt import fedadagrad as fedadagrad
from fedjax_algos.algorithms.averaging.fedopt import fedadam as fedadam
from fedjax_algos.algorithms.averaging.fedopt import fedavgm as fedavgm
from fedjax_algos.algorithms.averaging.fedopt import fedrmsprop as fedrmsprop
from fedjax_algos.algorithms.averaging.fedopt import fedyogi as fedyogi
from fedjax_algos.algorithms.averaging.fedprox import fedprox as fedprox
from fedjax_algos.algorithms.averaging.qfedavg import qfedavg as qfedavg
from fedjax_algos.algorithms.control_variates.adabest import adabest as adabest
from fedjax_algos.algorithms.control_variates.feddyn import feddyn as feddyn
from fedjax_algos.algorithms.control_variates.scaffold import scaffold as scaffold
from fedjax_algos.algorithms.global_optimizers.fedgbo import fedgbo as fedgbo
from fedjax_algos.algorithms.global_optimizers.mfl import mfl as mfl
from fedjax_algos.algorithms.global_optimizers.mime import mime as mime
from fedjax_algos.algorithms.global_optimizers.mime import mimemom as mimemom
from fedjax_algos.algorithms.global_optimizers.mimelite import mimelite as mimelite
from fedjax_algos.algorithms.global_optimizers.mimelite import mimelitemom as mimelitemom
from fedjax_algos.algorithms.global_optimizers.mimelite import mimexlite as mimexlite
from fedjax_algos.algorithms.momentum.fedcm import fedcm as fedcm
from fedjax_algos.algorithms.momentum.fedhbm import fedhbm as fedhbm
from fedjax_algos.algorithms.momentum.ghbm import fedadc as fedadc
from fedjax_algos.algorithms.momentum.ghbm import ghbm as ghbm
from fedjax_algos.algorithms.momentum.localghbm import localghbm as localghbm
from fedjax_algos.algorithms.personalised.apfl import apfl as apfl
from fedjax_algos.algorithms.personalised.ditto import ditto as ditto
from fedjax_algos.algorithms.personalised.fedbn import fedbn as fedbn
from fedjax_algos.algorithms.personalised.fedrep import fedrep as fedrep
from fedjax_algos.algorithms.personalised.ifca import ifca as ifca
from fedjax_algos.algorithms.personalised.perfedavg import perfedavg as perfedavg
from fedjax_algos.algorithms.personalised.pfedme import pfedme as pfedme
from fedjax_algos.algorithms.registry import algorithms as algorithms
