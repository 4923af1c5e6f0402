"""
Real lock nodes on this machine, for tests and experiments.

`LocalCluster` starts servers and breaks them on request, `LocalSentinel` starts groups that fail
over; `TcpProxy` breaks the network in front of any servers. Pytest finds the fixtures
`redlock_cluster`, `redlock_sentinel`, a factory of each, `redlock_memory_nodes` and
`redlock_testing` by itself.

These are real processes on one machine: they show crashes, freezes, partitions and garbage, but no
drifting clocks. For unit tests without a server, use `memory://name` as a node's URL. For separate
hosts, in containers beside those of pytest-celery, use `celery_redlock.testing.containers`.
"""

from celery_redlock.testing.cluster import LocalCluster
from celery_redlock.testing.proxy import TcpProxy
from celery_redlock.testing.sentinel import LocalSentinel
from celery_redlock.testing.server import LocalClusterError

__all__ = ["LocalCluster", "LocalClusterError", "LocalSentinel", "TcpProxy"]
