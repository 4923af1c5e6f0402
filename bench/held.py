"""
Locks that tasks seem to hold, in numbers that would take their client minutes.
"""

from __future__ import annotations

from celery_redlock import Redlock
from celery_redlock.core import client_of
from celery_redlock.protocol.commands import SOURCE, Script, acquire
from celery_redlock.protocol.keys import owner_timestamp_us
from celery_redlock.tasks.message.owner_label import label_for
from celery_redlock.tasks.rules.facts import Role
from celery_redlock.testing import LocalCluster

_TTL_MS = 3_600_000
_AT_ONCE = 1000


def hold(nodes: LocalCluster, client: Redlock, numbers: range) -> None:
    """Hold a key for each number on all nodes, by the script of an acquire, for an hour."""
    for first in range(0, len(numbers), _AT_ONCE):
        commands = []
        for number in numbers[first : first + _AT_ONCE]:
            owner = client_of(client).new_owner_value(_label(number))
            key = client_of(client).key_of(f"account:{number}")
            commands.append(acquire((key,), owner, _TTL_MS, owner_timestamp_us(owner), 0))
        for node in range(len(nodes)):
            pipe = nodes.client(node).pipeline(transaction=False)
            for command in commands:
                pipe.eval(
                    SOURCE[Script.ACQUIRE], len(command.keys), *command.keys, "", *command.args
                )
            pipe.execute()


def _label(number: int) -> str:
    task_id = f"00000000-0000-4000-8000-{number:012}"
    return label_for(Role.RUNNING, task_id, "celery@worker-1", task="shop.tasks.charge")
