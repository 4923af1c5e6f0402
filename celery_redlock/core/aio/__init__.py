"""
Locks in an event loop: the same client, leases and watchdog, awaited.
"""

from celery_redlock.core.aio.client import AsyncRedlock
from celery_redlock.core.aio.lease import AsyncLease

__all__ = ["AsyncLease", "AsyncRedlock"]
