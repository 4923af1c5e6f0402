"""A lease, a file, and a resource that knows a token."""

from __future__ import annotations

import io

from celery_redlock import Redlock

__all__ = ["balance", "file", "highest_token_seen", "lease", "refuse", "token"]

lease = Redlock(["memory://safety"]).acquire("account:7")
file = io.StringIO()
balance = "100"
token = lease.fencing_token
highest_token_seen = token + 1
refuse = True
