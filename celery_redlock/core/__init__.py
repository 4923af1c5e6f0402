"""
Locks without Celery: the client, its leases and the watchdog that renews them.
"""

from celery_redlock.core.arming import Armed, arm_nodes
from celery_redlock.core.current import current_lease, enter_lease
from celery_redlock.core.lease import Lease
from celery_redlock.core.probe import Probe, probe_nodes
from celery_redlock.core.redlock import MAX_HOLD, SHORTEST_TTL, Redlock

__all__ = [
    "MAX_HOLD",
    "SHORTEST_TTL",
    "Armed",
    "Lease",
    "Probe",
    "Redlock",
    "arm_nodes",
    "current_lease",
    "enter_lease",
    "probe_nodes",
]
