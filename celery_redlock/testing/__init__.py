"""
Real lock nodes on this machine, for tests and for trying things out.

`LocalCluster` starts servers and breaks them on request; `TcpProxy` is the part that breaks the
network, usable in front of any servers. The pytest fixtures `redlock_cluster`,
`redlock_cluster_factory` and `redlock_memory_nodes` come with the package by themselves.

These are real processes on one machine: good for crashes, freezes, partitions and garbage; no
substitute for several machines where clocks drift. For unit tests that need no server at all, use
`memory://name` as a node's URL; for hosts of their own, in containers and beside pytest-celery's,
`celery_redlock.testing.containers`.
"""

from celery_redlock.testing.cluster import LocalCluster
from celery_redlock.testing.proxy import TcpProxy
from celery_redlock.testing.server import LocalClusterError

__all__ = ["LocalCluster", "LocalClusterError", "TcpProxy"]
