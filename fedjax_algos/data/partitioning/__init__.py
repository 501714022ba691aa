"""Partitions: pure functions of labels and a seed that assign examples to clients."""

from fedjax_algos.data.partitioning.base import Partition as Partition
from fedjax_algos.data.partitioning.base import hold_out as hold_out
from fedjax_algos.data.partitioning.base import partitions as partitions
from fedjax_algos.data.partitioning.by_labels import class_partition as class_partition
from fedjax_algos.data.partitioning.by_labels import classes_per_client as classes_per_client
from fedjax_algos.data.partitioning.by_labels import dirichlet as dirichlet
from fedjax_algos.data.partitioning.by_labels import dirichlet_balanced as dirichlet_balanced
from fedjax_algos.data.partitioning.by_labels import dirichlet_classes as dirichlet_classes
from fedjax_algos.data.partitioning.by_labels import dual_dirichlet as dual_dirichlet
from fedjax_algos.data.partitioning.shifts import shifts as shifts
from fedjax_algos.data.partitioning.simple import iid as iid
from fedjax_algos.data.partitioning.simple import natural as natural
from fedjax_algos.data.partitioning.simple import pachinko as pachinko
from fedjax_algos.data.partitioning.simple import quantity as quantity
