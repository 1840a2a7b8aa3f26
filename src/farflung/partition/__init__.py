"""Cutting a graph into parts: assignments, shards, partitions on disk, and their diagnosis."""

from farflung.partition.arrays import from_arrays, setup_bytes, to_arrays
from farflung.partition.assign import assign, super_nodes
from farflung.partition.config import PartitionConfig
from farflung.partition.diagnosis import Diagnosis, diagnose
from farflung.partition.expectations import kept_share_expected, kept_share_sd
from farflung.partition.local import local_edge_rows, local_edge_weight, local_edges
from farflung.partition.metis import PartitionerError
from farflung.partition.partition import Partition, cut_graph, partition
from farflung.partition.reassembly import reassemble
from farflung.partition.shard import GraphInfo, Shard
from farflung.partition.shards import build_shards

__all__ = [
    "Diagnosis",
    "GraphInfo",
    "Partition",
    "PartitionConfig",
    "PartitionerError",
    "Shard",
    "assign",
    "build_shards",
    "cut_graph",
    "diagnose",
    "from_arrays",
    "kept_share_expected",
    "kept_share_sd",
    "local_edge_rows",
    "local_edge_weight",
    "local_edges",
    "partition",
    "reassemble",
    "setup_bytes",
    "super_nodes",
    "to_arrays",
]
