"""Readers of data sets: each module adds its factories to the registry `datasets`."""

from fedjax_algos.data.readers import array_files as array_files
from fedjax_algos.data.readers import flamby as flamby
from fedjax_algos.data.readers import hf as hf
from fedjax_algos.data.readers import image_folder as image_folder
from fedjax_algos.data.readers import leaf as leaf
from fedjax_algos.data.readers import made as made
from fedjax_algos.data.readers import sqlite as sqlite
from fedjax_algos.data.readers import tables as tables
from fedjax_algos.data.readers import texts as texts
from fedjax_algos.data.readers import tfds as tfds
