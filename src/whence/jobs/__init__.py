"""Jobs over whole datasets: explained in parts, on one machine or a cluster, and summarised."""

from .aggregation import summarize
from .job import Job, run
from .summary import Summary

__all__ = ["Job", "Summary", "run", "summarize"]
