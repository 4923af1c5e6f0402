"""
Log records with fields: an event code, a text with named fields, and the fields themselves.
"""

from __future__ import annotations

import logging
from typing import TypeAlias

ExcInfo: TypeAlias = bool | BaseException | None
_PLAIN = (str, int, float, bool, type(None))


def event_logger(name: str) -> EventLogger:
    """Return the logger of a module, by its `__name__`."""
    return EventLogger(logging.getLogger(name))


class EventLogger:
    """
    Logs events of one module through its standard logger, so that handlers and filters apply.

    Each call makes one record. Its `args` are the fields, which the text shows as `%(name)s`. It
    has the attributes `redlock_event` and, for each field, `redlock_NAME`: the value if JSON can
    have it, else its `str()`. Nothing of this is computed when the level is off. If `call_in_app`
    makes the call, the record names the file and line of that function.

    In the text, a field shows its control characters escaped: users choose keys and names, and a
    line break in one must not look like another line of the log.

    A field cannot be called `event` or `exc_info`. A text without fields is not formatted, so
    it may have a `%`.
    """

    __slots__ = ("_logger",)

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger

    def debug(
        self, event: str, text: str, /, *, exc_info: ExcInfo = None, **fields: object
    ) -> None:
        """Log at `DEBUG`."""
        self._emit(logging.DEBUG, event, text, exc_info, fields)

    def info(self, event: str, text: str, /, *, exc_info: ExcInfo = None, **fields: object) -> None:
        """Log at `INFO`."""
        self._emit(logging.INFO, event, text, exc_info, fields)

    def warning(
        self, event: str, text: str, /, *, exc_info: ExcInfo = None, **fields: object
    ) -> None:
        """Log at `WARNING`."""
        self._emit(logging.WARNING, event, text, exc_info, fields)

    def error(
        self, event: str, text: str, /, *, exc_info: ExcInfo = None, **fields: object
    ) -> None:
        """Log at `ERROR`."""
        self._emit(logging.ERROR, event, text, exc_info, fields)

    def exception(
        self, event: str, text: str, /, *, exc_info: ExcInfo = True, **fields: object
    ) -> None:
        """Log at `ERROR`, with the exception that is handled."""
        self._emit(logging.ERROR, event, text, exc_info, fields)

    def log(
        self,
        level: int,
        event: str,
        text: str,
        /,
        *,
        exc_info: ExcInfo = None,
        **fields: object,
    ) -> None:
        """Log at the given level."""
        self._emit(level, event, text, exc_info, fields)

    def _emit(
        self, level: int, event: str, text: str, exc_info: ExcInfo, fields: dict[str, object]
    ) -> None:
        if not self._logger.isEnabledFor(level):
            return
        extra = {f"redlock_{name}": _plain(value) for name, value in fields.items()}
        shown = {name: _shown(fields[name], extra[f"redlock_{name}"]) for name in fields}
        extra["redlock_event"] = event
        args = (shown,) if shown else ()
        self._logger.log(level, text, *args, exc_info=exc_info, extra=extra, stacklevel=3)


class _Escaped:
    """A value whose text controls no terminal and breaks no line."""

    __slots__ = ("_text", "_value")

    def __init__(self, value: object, text: str) -> None:
        self._value = value
        self._text = text

    def __str__(self) -> str:
        return "".join(
            char if char.isprintable() else char.encode("unicode_escape").decode()
            for char in self._text
        )

    def __repr__(self) -> str:
        return repr(self._value)


def _shown(value: object, text: object) -> object:
    """Return the form of a value in the text of a record; `text` is its plain form."""
    return _Escaped(value, text) if isinstance(text, str) and not text.isprintable() else value


def _plain(value: object) -> object:
    if type(value) in _PLAIN:
        return value
    try:
        return str(value)
    except Exception:  # an application's error or key; logging survives such a value as well
        return f"<{type(value).__name__} without a text>"
