"""
The rows of the benchmark: name to function. Each starts the servers that it needs.
"""

from __future__ import annotations

from collections.abc import Callable

from bench.results import Result
from bench.rows.cost import client_cpu, delayed, growth, server_cpu
from bench.rows.guards import guards
from bench.rows.keys import keys_left
from bench.rows.limits import backlog, limit_cost, limits
from bench.rows.listing import listing
from bench.rows.locks import floor, one_node, pottery, redlock_py
from bench.rows.observed import observed
from bench.rows.order import order
from bench.rows.publish import publish
from bench.rows.renewal import renewal, watchdog
from bench.rows.sql_guards import sql_guards
from bench.rows.stopped import stopped_nodes
from bench.rows.throughput import throughput
from bench.rows.waiting import waiting

#: Each takes whether to be quick, at the price of precision.
ROWS: dict[str, Callable[[bool], list[Result]]] = {
    "one-node": one_node,
    "floor": floor,
    "pottery": pottery,
    "redlock-py": redlock_py,
    "delayed": delayed,
    "client-cpu": client_cpu,
    "server-cpu": server_cpu,
    "growth": growth,
    "stopped": stopped_nodes,
    "tasks": throughput,
    "publish": publish,
    "renewal": renewal,
    "watchdog": watchdog,
    "keys": keys_left,
    "guards": guards,
    "sql-guards": sql_guards,
    "observed": observed,
    "waiting": waiting,
    "order": order,
    "limit-cost": limit_cost,
    "limits": limits,
    "rate-backlog": backlog,
    "listing": listing,
}

#: Rows that take minutes are measured when they are named.
ON_REQUEST = frozenset({"waiting", "order", "limits", "rate-backlog"})
