"""How long jobs take and locks last, for those who send them and for those who look on."""

from __future__ import annotations

#: The body of a job that is longer than its interval, in seconds.
LONG = 5.0
#: Renewed at a third of it, which is when a run that is to be replaced finds out.
TTL = 4.5
#: How long a brief job keeps its lock.
AT_LEAST_FOR = 8.0
