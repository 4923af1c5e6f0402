"""
Locks in an event loop: the same client, leases and watchdog, awaited.
"""

from celery_redlock.core.aio.client import AsyncLease, AsyncRedlock

__all__ = ["AsyncLease", "AsyncRedlock"]
