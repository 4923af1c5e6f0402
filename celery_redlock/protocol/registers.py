"""
What `write_register.lua` and `read_register.lua` mean, in Python: one node's copy of a register.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from celery_redlock.protocol.commands import Command
from celery_redlock.protocol.votes import (
    ACKNOWLEDGED,
    RegisterContents,
    Superseded,
    VersionedValue,
    Vote,
)


@dataclass(slots=True)
class StoredRegister:
    """
    A register on a node.

    Attributes:
        token: the newest token that was here.
        fields: by name.
    """

    token: int = 0
    fields: dict[str, VersionedValue] = field(default_factory=dict)

    def write(self, command: Command) -> Vote:
        """Write fields, unless a newer token was here."""
        token = int(command.args[0])
        if self.token > token:
            return Superseded(self.token)
        self.token = token
        told = command.args[1:]
        for name, version, text in zip(told[0::3], told[1::3], told[2::3], strict=True):
            if version == "":
                self.fields.pop(str(name), None)
                continue
            new = VersionedValue(token, int(version), str(text))
            stored = self.fields.get(str(name))
            # A node that was stopped runs what it was told then when it has been told more already.
            if stored is None or stored.rank <= new.rank:
                self.fields[str(name)] = new
        return ACKNOWLEDGED

    def read(self, command: Command) -> Vote:
        """Tell the fields; with a token, promise first to refuse what older tokens write."""
        token, most, *names = command.args
        if int(token) > 0:
            if self.token > int(token):
                return Superseded(self.token)
            self.token = int(token)
        told: dict[str, VersionedValue] = {}
        truncated = set()
        size = 0
        for name in map(str, names) if names else tuple(self.fields):
            if name not in self.fields:
                continue
            more = len(str(self.fields[name]).encode())
            if told and size + more > int(most):
                truncated.add(name)
            else:
                told[name] = self.fields[name]
                size += more
        return RegisterContents(self.token, told, frozenset(truncated))
