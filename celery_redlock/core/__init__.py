"""
Locks without Celery: the client, its leases and the watchdog that renews them.
"""

from celery_redlock.core.arming import Armed, arm_nodes
from celery_redlock.core.current import current_lease, enter_lease
from celery_redlock.core.lease import Lease
from celery_redlock.core.looking import Held
from celery_redlock.core.probe import Probe, probe_nodes
from celery_redlock.core.redlock import MAX_HOLD, Redlock
from celery_redlock.core.register import Register, VersionedValue
from celery_redlock.core.reservation import Reservation
from celery_redlock.core.reserving import Reserved
from celery_redlock.core.wishing import SHORTEST_TTL
from celery_redlock.protocol import ReleaseAction

__all__ = [
    "MAX_HOLD",
    "SHORTEST_TTL",
    "Armed",
    "Held",
    "Lease",
    "Probe",
    "Redlock",
    "Register",
    "ReleaseAction",
    "Reservation",
    "Reserved",
    "VersionedValue",
    "arm_nodes",
    "current_lease",
    "enter_lease",
    "probe_nodes",
]
