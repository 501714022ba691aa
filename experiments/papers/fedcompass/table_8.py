"""Table 8: the parameters of FedCompass's network for MNIST, by layer.

COMMAND   python experiments/papers/claims.py run fedcompass/table_8
EXPECTED  582,026 in all, and the four printed layers
TIME      a few seconds
"""

from parameters import rows_of

from fedjax_algos.models import cnn_fedcompass

LAYERS = {
    "Conv1": "Conv_0",
    "Conv2": "Conv_1",
    "FC1": "Perceptron_0/Dense_0",
    "FC2": "Perceptron_0/Dense_1",
}


def rows(run):
    return rows_of(LAYERS, cnn_fedcompass, (28, 28))
