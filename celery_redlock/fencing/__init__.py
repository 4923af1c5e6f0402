"""
Guards for the resources that a lock protects: a writer whose lock was given on is refused.

A lock cannot stop a holder that was paused past its lease from writing. The resource can: it
remembers the highest fencing token it has seen, and refuses what is older. Every guard here
compares and writes in one step, lets an equal token pass (one holder may write often), and raises
`StaleFencingToken` without a change when a newer token has been there.

Tokens order the holders of one lock key. Write a resource only under one and the same key (a task
that locks several has one token for all), or the tokens say nothing about who came later.

Each guard is loaded when it is first asked for. `celery_redlock.fencing.sqlalchemy` and
`celery_redlock.fencing.django` are modules of their own; they need the extras of those names.
"""

from __future__ import annotations

from celery_redlock.fencing.tokens import checked_token, token_or_current

__all__ = ["checked_token", "token_or_current"]
