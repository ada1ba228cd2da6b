"""Whole datasets: explained in parts that are whole or absent, on one machine or on many, and summed up."""

from .job import Job, run
from .summary import Summary, summarize

__all__ = ["Job", "Summary", "run", "summarize"]
