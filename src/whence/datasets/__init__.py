"""Datasets: by name, or in the formats that people have; read as a stream."""

from .dataset import Dataset
from .formats import read
from .item import Item
from .named import NAMED, load

__all__ = ["NAMED", "Dataset", "Item", "load", "read"]
