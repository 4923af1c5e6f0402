"""
Mistakes in settings and options: all of them in one error.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from celery.exceptions import CeleryCommandException

from celery_redlock.errors import ConfigurationError, LockKeyError, RedlockError

#: The exit status of a command with a wrong setting, the same as that of a misused command.
EXIT_STATUS = 2


class Misconfigured(ConfigurationError, CeleryCommandException):  # type: ignore[misc]  # Celery is untyped
    """
    Several mistakes, or one that ends a process at its start.

    A `celery` command ends with its message and without a traceback, as with every
    `CeleryCommandException`.

    Attributes:
        mistakes: a sentence for each.
    """

    def __init__(self, *mistakes: str) -> None:
        self.mistakes = tuple(
            mistake if mistake.endswith((".", "?")) else f"{mistake}."
            for mistake in dict.fromkeys(mistakes)
        )
        listed = "\n".join(f"  - {mistake}" for mistake in self.mistakes)
        CeleryCommandException.__init__(
            self,
            self.mistakes[0]
            if len(self.mistakes) == 1
            else f"{len(self.mistakes)} settings or options are invalid:\n{listed}",
            EXIT_STATUS,
        )
        self.args = self.mistakes


class Mistakes(list[RedlockError]):
    """The errors of several checks, to report them together."""

    @contextmanager
    def collected(self) -> Iterator[None]:
        """Collect what the block raises, and continue after it."""
        try:
            yield
        except (ConfigurationError, LockKeyError) as error:
            self.append(error)

    def all_in_one(self) -> Misconfigured:
        """Return one error that names every mistake."""
        return Misconfigured(
            *(
                sentence
                for error in self
                for sentence in (
                    error.mistakes if isinstance(error, Misconfigured) else [str(error)]
                )
            )
        )

    def raise_any(self) -> None:
        """
        Raise what was collected, if anything was; a single error as it is.

        Raises:
            ConfigurationError: names every mistake.
            LockKeyError: the only mistake.
        """
        if self:
            raise self[0] if len(self) == 1 else self.all_in_one()
