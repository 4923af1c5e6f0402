"""
Mistakes in settings and options: all of them in one error.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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


class Mistakes:
    """
    Collects the mistakes of several checks, to report them together.

    Args:
        earlier: the errors of earlier checks.
    """

    def __init__(self, earlier: Iterable[RedlockError] = ()) -> None:
        self._errors = list(earlier)

    def __iter__(self) -> Iterator[RedlockError]:
        """Iterate over the errors."""
        return iter(self._errors)

    def __bool__(self) -> bool:
        """Return whether there is one."""
        return bool(self._errors)

    def add(self, error: RedlockError) -> None:
        """Add an error that does not need to be raised."""
        self._errors.append(error)

    @contextmanager
    def collected(self) -> Iterator[None]:
        """Collect what the block raises, and continue after it."""
        try:
            yield
        except (ConfigurationError, LockKeyError) as error:
            self._errors.append(error)

    def all_in_one(self) -> Misconfigured:
        """Return one error that names every mistake."""
        return Misconfigured(
            *(
                sentence
                for error in self._errors
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
        if self._errors:
            raise self._errors[0] if len(self._errors) == 1 else self.all_in_one()
