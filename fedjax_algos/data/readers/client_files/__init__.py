"""Readers of files that hold clients, or examples with a feature that names them."""

from fedjax_algos.data.readers.client_files import hf as hf
from fedjax_algos.data.readers.client_files import leaf as leaf
from fedjax_algos.data.readers.client_files import sqlite as sqlite
from fedjax_algos.data.readers.client_files import texts as texts
from fedjax_algos.data.readers.client_files import tfds as tfds
from fedjax_algos.data.readers.client_files import tff_hdf5 as tff_hdf5
