"""
Locks without Celery: the client, its leases and the watchdog that extends them.
"""

from celery_redlock.core.client import Client, PendingReservation
from celery_redlock.core.inspection import LockInfo
from celery_redlock.core.instrumentation import observe
from celery_redlock.core.lease import (
    MAX_HOLD,
    Lease,
    current_lease,
    current_leases,
    set_current_lease,
    set_current_leases,
)
from celery_redlock.core.limits import Limit, Rate
from celery_redlock.core.node_admin import ArmResult, ProbeResult, arm_nodes, probe_nodes
from celery_redlock.core.redlock import Redlock, client_of
from celery_redlock.core.register import Register
from celery_redlock.core.reservation import Reservation
from celery_redlock.core.validation import SHORTEST_TTL
from celery_redlock.protocol.commands import ReleaseAction
from celery_redlock.protocol.votes import VersionedValue

__all__ = [
    "MAX_HOLD",
    "SHORTEST_TTL",
    "ArmResult",
    "Client",
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
    "client_of",
    "current_lease",
    "current_leases",
    "observe",
    "probe_nodes",
    "set_current_lease",
    "set_current_leases",
]
