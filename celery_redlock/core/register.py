"""
A register on the lock nodes: what the holders of a lock leave to their successors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from celery_redlock.core.client import Client
from celery_redlock.core.failures import describe_problems, node_votes
from celery_redlock.core.validation import checked_token
from celery_redlock.errors import (
    ConfigurationError,
    QuorumUnavailable,
    StaleFencingToken,
)
from celery_redlock.protocol.commands import CHUNK_BYTES, Command, read_register, write_register
from celery_redlock.protocol.keys import register_key, validate_name
from celery_redlock.protocol.rounds import Phase, RegisterRound, Round
from celery_redlock.protocol.timing import MAX_TOKEN
from celery_redlock.protocol.votes import Acknowledged, RegisterContents, Superseded, VersionedValue
from celery_redlock.transport import borrowed

#: Fields that one command writes or reads.
_MAX_FIELDS = 500

#: Bytes of one text; replies with such texts stay far below the size that counts as garbage.
MAX_TEXT = 1_000_000

_Field = tuple[int, str] | None


class Register:
    """
    Named texts on a quorum of the lock nodes, which only the newest holder of a lock can change.

    Guarantee: `claim` returns everything that any earlier write put on a quorum, and once it has
    returned, no other write with a smaller token gets to a quorum; whatever the timing, and even if
    any minority of nodes is lost. Limit: nodes that lose their data lose the register with it, and
    the restart quarantine does not cover it; keep here only data whose loss makes work run once
    more. A read may or may not return what a failed write left on a minority, and a field that was
    deleted while a node was down.

    No command is retried, and no field expires. Thread-safe and fork-safe as the client is.

    Args:
        client: the register uses its nodes and its key prefix.
        name: the register's name.

    Raises:
        LockKeyError: the name cannot be written on a node.
    """

    def __init__(self, client: Client, name: str) -> None:
        self._record = register_key(client.settings.key_prefix, name)
        self._client = client
        self._name = name

    def __repr__(self) -> str:
        return f"<Register {self._name}>"

    def claim(self, token: int) -> dict[str, VersionedValue]:
        """
        Shut out all holders of smaller tokens, and return the fields that they have left.

        Args:
            token: the fencing token of a lease that is held now.

        Raises:
            StaleFencingToken: a newer holder has claimed or written already.
            QuorumUnavailable: too few nodes answered; some may refuse older tokens already.
        """
        return self._read(checked_token(token), ())

    def read(self, names: Sequence[str] = ()) -> dict[str, VersionedValue]:
        """
        Return the newest fields that a quorum of nodes has; shut no holder out.

        Args:
            names: fields to return; all if empty.

        Raises:
            QuorumUnavailable: too few nodes answered.
        """
        wanted = list(dict.fromkeys(map(self._checked_field_name, names)))
        found: dict[str, VersionedValue] = {}
        for at in range(0, len(wanted) or 1, _MAX_FIELDS):
            found |= self._read(0, wanted[at : at + _MAX_FIELDS])
        return found

    def write(self, token: int, fields: Mapping[str, _Field]) -> None:
        """
        Put fields on a quorum of nodes; a field that has a newer version there stays as it is.

        Many fields are sent in several commands, and an error leaves those of the earlier ones
        written. Without fields the call only checks whether a newer holder has claimed or written.

        Args:
            token: the fencing token of the holder.
            fields: version (from 0 to 2**53 - 1) and text by name, of at most 1,000,000 bytes; None
                deletes the field.

        Raises:
            ConfigurationError: a version is out of range, or a text is too long; nothing was
                written.
            StaleFencingToken: a newer holder has claimed or written.
            QuorumUnavailable: too few nodes answered; some of them may have the fields.
        """
        checked_token(token)
        for name, field in fields.items():
            self._check_field(name, field)
        for chunk in _chunks(fields):
            round_ = RegisterRound(len(self._client.node_names), Acknowledged)
            self._send(write_register(self._record, token, chunk), round_, token)

    def _read(self, token: int, names: Sequence[str]) -> dict[str, VersionedValue]:
        """Return fields; with a token, each chunk shuts out older tokens anew."""
        found, truncated = self._read_chunk(token, names)
        while truncated:
            # A reply always has the first requested field.
            more, still = self._read_chunk(token, truncated[:_MAX_FIELDS])
            found |= more
            truncated = still + truncated[_MAX_FIELDS:]
        return found

    def _read_chunk(
        self, token: int, names: Sequence[str]
    ) -> tuple[dict[str, VersionedValue], list[str]]:
        round_ = RegisterRound(len(self._client.node_names), RegisterContents)
        self._send(read_register(self._record, token, names), round_, token)
        return round_.fields(), round_.truncated()

    def _send(self, command: Command, round_: RegisterRound, token: int) -> None:
        transport = self._client.transport
        with borrowed(transport) as channel:
            channel.connect()
            channel.exchange(((command, round_),), self._client.settings.node_timeout)
        if round_.phase is Phase.SUPERSEDED:
            raise self._stale(round_, token)
        if round_.phase is not Phase.GRANTED:
            raise self._unavailable(round_)

    def _stale(self, round_: RegisterRound, token: int) -> StaleFencingToken:
        seen = round_.newest_token
        nodes = self._client.node_names
        newer = [
            node
            for node, vote in zip(nodes, round_.votes, strict=True)
            if isinstance(vote, Superseded)
        ]
        return StaleFencingToken(
            f"Register {self._name!r} has seen fencing token {seen} on {', '.join(newer)} "
            f"({len(newer)} of {len(nodes)} nodes); token {token} is older and was refused. The "
            "lock has a new holder: stop, and let that holder work.",
            self._name,
            seen,
            token,
        )

    def _unavailable(self, round_: Round) -> QuorumUnavailable:
        problems = node_votes(round_, self._client.node_names)
        return QuorumUnavailable(
            f"Register {self._name!r} needs {round_.needed} of {len(round_.votes)} nodes. "
            f"{describe_problems(problems)}. Try again when they answer.",
            self._name,
            problems,
        )

    def _checked_field_name(self, name: str) -> str:
        return validate_name(name, f"The name of a field of register {self._name!r}")

    def _check_field(self, name: str, field: _Field) -> None:
        self._checked_field_name(name)
        if field is None:
            return
        what = f"Field {name!r} of register {self._name!r}"
        version, text = field
        if not 0 <= version <= MAX_TOKEN:
            raise ConfigurationError(
                f"{what} has the version {version!r:.80}; give an int from 0 to 2**53 - 1."
            )
        if (size := len(text.encode())) > MAX_TEXT:
            raise ConfigurationError(
                f"{what} has a text of {size:,} bytes; at most {MAX_TEXT:,} fit. Store the text "
                "elsewhere, and a reference to it here."
            )


def _chunks(fields: Mapping[str, _Field]) -> Iterator[dict[str, _Field]]:
    """Divide fields into chunks that a node may get at once; there is at least one."""
    chunk: dict[str, _Field] = {}
    size = 0
    for name, field in fields.items():
        more = len(field[1].encode()) if field else 0
        if chunk and (len(chunk) >= _MAX_FIELDS or size + more > CHUNK_BYTES):
            yield chunk
            chunk, size = {}, 0
        chunk[name] = field
        size += more
    yield chunk
