"""Every comparison, each in a process of its own: some libraries change classes of others, and for good."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

from tools.benchmarks.peers import autolrp_, captum_, grad_cam_, inseq_, lxt_, transformers_interpret_, zennit_
from tools.benchmarks.peers.comparison import first_line
from tools.benchmarks.peers.table import Row

PEERS = {
    "autolrp": autolrp_.COMPARISONS,
    "captum": captum_.COMPARISONS,
    "grad-cam": grad_cam_.COMPARISONS,
    "inseq": inseq_.COMPARISONS,
    "lxt": lxt_.COMPARISONS,
    "transformers-interpret": transformers_interpret_.COMPARISONS,
    "zennit": zennit_.COMPARISONS,
}


def row(peer: str, number: int, repeats: int) -> Row:
    """One comparison of a peer, in this process."""
    return PEERS[peer][number].row(repeats)


def alone(peer: str, number: int, repeats: int) -> Row:
    """The same in a new process; if that dies, a row that says so."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        try:
            return pool.submit(row, peer, number, repeats).result()
        except BrokenProcessPool as error:
            return PEERS[peer][number].about() | {"error": first_line(error)}
