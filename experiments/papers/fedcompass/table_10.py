"""Table 10: the parameters of FedCompass's ResNet-18 for CIFAR-10, by layer.

COMMAND   python experiments/papers/claims.py run fedcompass/table_10
EXPECTED  11,173,962 in all, and the eleven printed layers
TIME      ten seconds
"""

from parameters import rows_of

from fedjax_algos.models import resnet18

BLOCKS = [f"ResidualBlock{stage}-{block}" for stage in (1, 2, 3, 4) for block in (1, 2)]
LAYERS = {"Conv1": "Conv_0", "BatchNorm1": "Normalisation_0", "Linear": "Dense_0"}
LAYERS |= {name: f"Block_{number}" for number, name in enumerate(BLOCKS)}


def rows(run):
    return rows_of(LAYERS, resnet18, (32, 32, 3))
