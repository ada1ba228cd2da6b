"""Datasets by name, or in common file formats, read as streams of items."""

from .dataset import Dataset
from .formats import read
from .item import Item
from .named import NAMED, load

__all__ = ["NAMED", "Dataset", "Item", "load", "read"]
