"""Readers of files with a part for each client, or with a feature that names the client."""

from fedjax_algos.data.readers.client_files import hf as hf
from fedjax_algos.data.readers.client_files import leaf as leaf
from fedjax_algos.data.readers.client_files import sqlite as sqlite
from fedjax_algos.data.readers.client_files import texts as texts
from fedjax_algos.data.readers.client_files import tfds as tfds
