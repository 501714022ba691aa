"""Readers of data sets: each module adds its factories to the registry `datasets`."""

from fedjax_algos.data.readers import cifar as cifar
from fedjax_algos.data.readers import client_files as client_files
from fedjax_algos.data.readers import csv_table as csv_table
from fedjax_algos.data.readers import flamby as flamby
from fedjax_algos.data.readers import idx as idx
from fedjax_algos.data.readers import image_folder as image_folder
from fedjax_algos.data.readers import made as made
from fedjax_algos.data.readers import npz as npz
