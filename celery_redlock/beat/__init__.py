"""
A beat that fails over: any number of beats share one schedule, and one of them leads.
"""

from __future__ import annotations

from celery_redlock.beat.scheduler import RedlockScheduler

__all__ = ["RedlockScheduler"]
