"""
The commands in a redis-py pipeline, to be sent together with others, perhaps more than once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from redis.exceptions import WatchError

from celery_redlock.errors import ConfigurationError

__all__ = ["CapturedPipeline", "is_watch_conflict"]


@dataclass(frozen=True, slots=True)
class CapturedPipeline:
    """
    What was queued in a pipeline, blocking or asyncio.

    Attributes:
        commands: each command's arguments, and the options that its reply is read with.
        scripts: registered scripts that must be loaded first.
    """

    commands: list[tuple[tuple[Any, ...], dict[str, Any]]]
    scripts: set[Any]

    @classmethod
    def capture(cls, pipe: Any) -> Self:
        """Note what is queued."""
        if pipe.watching:
            raise ConfigurationError(
                "The pipeline watches keys already, and a guarded run must be free to try again. "
                "Give a pipeline that watches nothing, or a Lua script."
            )
        return cls(list(pipe.command_stack), set(pipe.scripts))

    def replay(self, pipe: Any) -> None:
        """Queue it all again, behind what is in the pipeline's transaction already."""
        for arguments, options in self.commands:
            pipe.execute_command(*arguments, **options)
        pipe.scripts |= self.scripts


def is_watch_conflict(error: WatchError) -> bool:
    """
    Tell whether a transaction was not executed because a watched key had changed.

    redis-py raises the same class when the connection breaks while keys are watched. Then the
    transaction may have been executed, and must not be sent again.
    """
    return "changed" in str(error)
