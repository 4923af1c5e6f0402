"""
What a node has of the register, frozen, and what it does with a command.
"""

from __future__ import annotations

from dataclasses import dataclass

from celery_redlock.protocol.commands import Command, Script
from celery_redlock.protocol.node_model import Identity, ModelNode, StoredRegister
from celery_redlock.protocol.votes import Acknowledged, RegisterContents, VersionedValue, Vote
from evidence.models.leader_steps import ENTRY, RECORD

#: A tick that a leader has recorded: its token, and when that was due, in µs.
Write = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Copy:
    """
    One node's copy of the register.

    Attributes:
        token: the newest that was there.
        fields: by name.
        done: writes of the entry that this node has acknowledged; never forgotten, so that it can
            be told what has ever been on a quorum.
    """

    token: int = 0
    fields: tuple[tuple[str, VersionedValue], ...] = ()
    done: frozenset[Write] = frozenset()


@dataclass(frozen=True, slots=True)
class Told:
    """A `RegisterContents` that can be part of a state."""

    token: int
    fields: tuple[tuple[str, VersionedValue], ...]

    @classmethod
    def by(cls, vote: Vote) -> Vote | Told:
        """Return a vote, in this form if it is one."""
        if isinstance(vote, RegisterContents):
            return cls(vote.token, tuple(sorted(vote.fields.items())))
        return vote

    def vote(self) -> RegisterContents:
        """Return the vote."""
        return RegisterContents(self.token, dict(self.fields))


def run_command(copy: Copy, command: Command) -> tuple[Copy, Vote]:
    """Let a node run a command; return its copy then, and its vote."""
    register = StoredRegister(copy.token, dict(copy.fields))
    vote = ModelNode(Identity("", ""), registers={RECORD: register}).run(command, 0)
    done = copy.done
    if (
        command.script is Script.WRITE_REGISTER
        and isinstance(vote, Acknowledged)
        and ENTRY in command.args[1:]
    ):
        at = command.args.index(ENTRY)
        done |= {(int(command.args[0]), int(command.args[at + 1]))}
    return Copy(register.token, tuple(sorted(register.fields.items())), done), vote
