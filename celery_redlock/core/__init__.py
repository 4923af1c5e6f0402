"""
Locks without Celery: the client, its leases and the watchdog that extends them.
"""

from celery_redlock.core.current import (
    current_lease,
    current_leases,
    set_current_lease,
    set_current_leases,
)
from celery_redlock.core.inspection import LockInfo
from celery_redlock.core.instrumentation import observe
from celery_redlock.core.lease import Lease
from celery_redlock.core.limits import Limit, Rate
from celery_redlock.core.node_admin import ArmResult, ProbeResult, arm_nodes, probe_nodes
from celery_redlock.core.redlock import MAX_HOLD, Redlock
from celery_redlock.core.register import Register, VersionedValue
from celery_redlock.core.reservation import Reservation
from celery_redlock.core.reservations import PendingReservation
from celery_redlock.core.validation import SHORTEST_TTL
from celery_redlock.protocol import ReleaseAction

__all__ = [
    "MAX_HOLD",
    "SHORTEST_TTL",
    "ArmResult",
    "Lease",
    "Limit",
    "LockInfo",
    "PendingReservation",
    "ProbeResult",
    "Rate",
    "Redlock",
    "Register",
    "ReleaseAction",
    "Reservation",
    "VersionedValue",
    "arm_nodes",
    "current_lease",
    "current_leases",
    "observe",
    "probe_nodes",
    "set_current_lease",
    "set_current_leases",
]
