"""
From a call of a task to its lock keys.

Arguments are bound to the signature of the task's body first, so positional, keyword and defaulted
calls agree.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from celery_redlock.core import Limit, Rate
from celery_redlock.errors import ConfigurationError, LockKeyError
from celery_redlock.protocol.keys import Key, validate_key
from celery_redlock.tasks.border import TaskLike
from celery_redlock.tasks.keys.canonical import canonical, digest
from celery_redlock.tasks.keys.models import model_readers
from celery_redlock.tasks.keys.received import as_received
from celery_redlock.tasks.keys.templates import Template, type_of

MAX_KEY_BYTES = 512
POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL)
VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
ADVICE = (
    "or name only the arguments that matter in a lock_key template, or make lock_key a function "
    "that returns the key"
)

SEVERAL = "name those with a limit in lock_key, as Limit('key', 5) or Rate('key', '9/m')"

#: A key of a call: its text, how many may hold it (0: it has no limit), and its period in ms.
_Named: TypeAlias = tuple[str, int, int]
_Maker: TypeAlias = Callable[[inspect.BoundArguments], list[_Named]]


class KeyMaker:
    """
    Makes a task's lock keys; mistakes that show without a call are found at construction.

    Args:
        task: the class of the task; its `run` gives the signature.
        spec: the checked value of `lock_key`. True: the task's name with a digest of all arguments.
            None: the same; with a limit or a rate the task's name alone. A string: a format
            template over the arguments. A function: it is called with the arguments that it names,
            as a worker receives them through JSON, and returns a key or a list of keys. A `Limit`
            or `Rate` whose key is a template: a key with that limit or rate. A list of these:
            several keys.
        limit: the value of `lock_limit`, a number or a function of the arguments; None: none.
        rate: the value of `lock_rate`; None: none.

    Attributes:
        templates: the templates among the keys.
        limits: each template that has a limit: `(template, limit or rate)`.

    Raises:
        LockKeyError: the template or function does not fit the task's arguments.
    """

    def __init__(
        self, task: TaskLike, spec: Any = None, limit: Any = None, rate: Any = None
    ) -> None:
        self._task = f"task {task.name!r}"
        self._name: str = task.name
        self._signature = _signature(task)
        parameters = self._signature.parameters.values()
        self._extra = next((p.name for p in parameters if p.kind is p.VAR_KEYWORD), None)
        self._models = model_readers(task, self._signature)
        self.templates: list[Template] = []
        self.limits: list[tuple[Template, Any]] = []
        if spec is True or (spec is None and limit is None and rate is None):
            self._makers: list[_Maker] = [self._by_digest]
        elif spec is None:
            self._makers = [lambda _bound: [(self._name, 0, 0)]]
        else:
            specs = spec if isinstance(spec, list | tuple) else (spec,)
            self._makers = [self._maker(part) for part in specs]
        if limit is not None or rate is not None:
            self._makers = [self._limited(limit, rate)]

    def keys_for(self, args: Any, kwargs: Mapping[str, Any], prefix: str) -> tuple[Key, ...]:
        """
        Return the lock keys of one call: at least one, each once, in the order of `lock_key`.

        Args:
            args: the call's positional arguments.
            kwargs: the call's keyword arguments.
            prefix: key prefix of the client.

        Raises:
            LockKeyError: the arguments do not fit the signature, or one of them has no stable form.
        """
        try:
            bound = self._signature.bind(*(args or ()), **(kwargs or {}))
        except TypeError as exc:
            raise self._error(f"the arguments do not fit its signature: {exc}") from None
        bound.apply_defaults()
        for name, read in self._models.items():
            bound.arguments[name] = read(bound.arguments[name])
        limits: dict[tuple[str, bool, int], int] = {}
        for text, slots, period_ms in (key for make in self._makers for key in make(bound)):
            lock = self._checked(text), slots > 0, period_ms
            # The lower of two limits for one lock satisfies both.
            limits[lock] = min(slots, limits.get(lock, slots))
        return tuple(
            Key.of(prefix, text, slots, period_ms) for (text, _, period_ms), slots in limits.items()
        )

    def _maker(self, spec: Any) -> _Maker:
        if isinstance(spec, str):
            return self._by_template(spec)
        if isinstance(spec, Limit | Rate):
            return self._by_limit(spec)
        return self._by_function(spec)

    def _limited(self, limit: Any, rate: Any) -> _Maker:
        """Return the maker of the only key under `lock_limit` and `lock_rate`."""
        if len(self._makers) != 1 or self.limits:
            raise self._error(f"lock_limit and lock_rate are for one key; {SEVERAL}")
        (maker,), named = self._makers, self.templates[:]
        specs: list[Limit | Rate] = [] if limit is None else [Limit(self._name, limit)]
        if rate is not None:
            specs.append(Rate(self._name, rate))
        appliers = [self._applier(spec, "lock_limit") for spec in specs]
        self.limits += [(template, spec) for template in named for spec in specs]

        def make(bound: inspect.BoundArguments) -> list[_Named]:
            keys = maker(bound)
            if len(keys) != 1 or keys[0][1]:
                raise self._error(
                    f"lock_limit and lock_rate are for one key, and lock_key returned "
                    f"{', '.join(repr(text) for text, *_ in keys):.200}; {SEVERAL}"
                )
            return [(keys[0][0], *apply(bound)) for apply in appliers]

        return make

    def _by_limit(self, spec: Limit | Rate) -> _Maker:
        if not isinstance(spec.key, str):
            raise self._error(f"lock_key: the key of {spec!r:.200} is not a template; give a str")
        inner, apply = self._by_template(spec.key), self._applier(spec, "lock_key")
        self.limits.append((self.templates[-1], spec))
        return lambda bound: [(text, *apply(bound)) for text, *_ in inner(bound)]

    def _applier(
        self, spec: Limit | Rate, option: str
    ) -> Callable[[inspect.BoundArguments], tuple[int, int]]:
        """Return a function that gives a call its slots and period."""
        limit = spec.limit if isinstance(spec, Limit) else None
        if not callable(limit):
            fixed = self._slots_and_period(spec)
            return lambda _bound: fixed
        call = self._call_of(limit, _label(limit), option)
        return lambda bound: self._slots_and_period(Limit(spec.key, call(bound)))

    def _slots_and_period(self, spec: Limit | Rate) -> tuple[int, int]:
        try:
            return spec.slots_and_period()
        except ConfigurationError as exc:
            raise self._error(str(exc).rstrip(".")) from None

    def _by_digest(self, bound: inspect.BoundArguments) -> list[_Named]:
        parts = []
        for name, value in sorted(bound.arguments.items()):
            try:
                parts.append(canonical(name) + canonical(value))
            except LockKeyError as exc:
                raise self._error(f"argument {name!r} {exc}, {ADVICE}") from None
        return [(f"{self._name}:{digest(''.join(parts))}", 0, 0)]

    def _by_template(self, source: str) -> _Maker:
        try:
            template = Template(source)
        except LockKeyError as exc:
            raise self._error(f"lock_key: {exc}") from None
        self._check_names(template.names, f"the template {source!r}")
        self.templates.append(template)
        # Checked with one character for all placeholders; a constant key is checked as it is.
        self._checked(template.prefix + ("x" if template.names else ""))

        def make(bound: inspect.BoundArguments) -> list[_Named]:
            try:
                key = template.fill(lambda name: self._argument(bound, name))
            except LockKeyError as exc:
                raise self._error(f"lock_key {source!r}: {exc}") from None
            if not key:
                empty = ", ".join(f"{{{name}}}" for name in sorted(template.names))
                raise self._error(
                    f"lock_key {source!r}: {empty} is empty, and so is the key; give it, or begin "
                    "the template with a text"
                )
            return [(key, 0, 0)]

        return make

    def _by_function(self, function: Callable[..., Any]) -> _Maker:
        label = _label(function)
        call = self._call_of(function, label, "lock_key")

        def make(bound: inspect.BoundArguments) -> list[_Named]:
            answer = call(bound)
            is_set = isinstance(answer, set | frozenset)
            keys = list(answer) if is_set or isinstance(answer, list | tuple) else [answer]
            named = [
                (key.key, *self._slots_and_period(key))
                if isinstance(key, Limit | Rate)
                else (key, 0, 0)
                for key in keys
            ]
            if not named or not all(isinstance(text, str) for text, *_ in named):
                raise self._error(
                    f"lock_key {label} returned {type_of(answer)}; it must return a str or "
                    "a non-empty list of str"
                )
            if not all(text for text, *_ in named):
                raise self._error(f"lock_key {label} returned an empty key; return a name")
            return sorted(named) if is_set else named  # a set has another order in each process

        return make

    def _call_of(
        self, function: Callable[..., Any], label: str, option: str
    ) -> Callable[[inspect.BoundArguments], Any]:
        """Return a function that calls `function` with the arguments of the task that it names."""
        wanted = self._wanted(function, label, option)

        def call(bound: inspect.BoundArguments) -> Any:
            received = self._received(bound)
            try:
                if wanted is None:
                    return function(*received.args, **received.kwargs)
                return function(**{n: v for n, v in self._named(received) if wanted(n)})
            except Exception as exc:
                raise self._error(f"{option} {label} failed: {type(exc).__name__}: {exc}") from exc

        return call

    def _wanted(
        self, function: Callable[..., Any], label: str, option: str
    ) -> Callable[[str], bool] | None:
        """Return which arguments to pass by name; None: pass all as the task gets them."""
        if inspect.iscoroutinefunction(function):
            raise self._error(
                f"{option}: the function {label} is a coroutine function, which is not awaited; "
                "use def"
            )
        try:
            parameters = inspect.signature(function).parameters.values()
        except (TypeError, ValueError):
            return None
        if any(p.kind in POSITIONAL for p in parameters):
            self._check_call(function, label, option)
            return None
        required = {
            p.name for p in parameters if p.default is p.empty and p.kind is not p.VAR_KEYWORD
        }
        self._check_names(required, f"the function {label}", option)
        if any(p.kind is p.VAR_KEYWORD for p in parameters):
            return lambda _name: True
        return {p.name for p in parameters}.__contains__

    def _check_call(self, function: Callable[..., Any], label: str, option: str) -> None:
        """Refuse a function that cannot be called as the task is, with all its arguments."""
        parameters = self._signature.parameters.values()
        if any(p.kind in VARIADIC for p in parameters):
            return  # the number and names of the arguments are not known yet
        by_name = {p.name: None for p in parameters if p.kind is p.KEYWORD_ONLY}
        signature = inspect.signature(function)
        try:
            signature.bind(*(p.name for p in parameters if p.name not in by_name), **by_name)
        except TypeError as exc:
            raise self._error(
                f"{option}: the function {label}{signature} cannot be called with the task's "
                f"arguments: {exc}"
            ) from None

    def _received(self, bound: inspect.BoundArguments) -> inspect.BoundArguments:
        """Return the arguments in the form that they have on both sides of a broker."""
        received = inspect.BoundArguments(self._signature, {})
        for name, value in bound.arguments.items():
            try:
                received.arguments[name] = as_received(value)
            except LockKeyError as exc:
                raise self._error(f"argument {name!r} {exc}") from None
        return received

    def _named(self, bound: inspect.BoundArguments) -> list[tuple[str, Any]]:
        named = dict(bound.arguments)
        extra = named.pop(self._extra, {}) if self._extra else {}
        return list({**extra, **named}.items())

    def _check_names(self, wanted: set[str], what: str, option: str = "lock_key") -> None:
        known = self._signature.parameters
        unknown = sorted(wanted - set(known))
        if unknown and self._extra is None:
            raise self._error(
                f"{option}: {what} names {', '.join(map(repr, unknown))}, which the task does not "
                f"have; its arguments are: {', '.join(known) or 'none'}"
            )

    def _argument(self, bound: inspect.BoundArguments, name: str) -> Any:
        if name in bound.arguments:
            return bound.arguments[name]
        # Only a task with **kwargs gets here: every other name was checked at construction.
        extra = bound.arguments[self._extra] if self._extra else {}
        if name in extra:
            return extra[name]
        raise LockKeyError(f"the call has no argument {name!r}; give it or change the template")

    def _checked(self, key: str) -> str:
        try:
            validate_key(key)
        except LockKeyError as exc:
            raise self._error(str(exc)) from None
        raw = key.encode()
        if len(raw) <= MAX_KEY_BYTES:
            return key
        suffix = f"#{digest(key)}"
        return raw[: MAX_KEY_BYTES - len(suffix)].decode(errors="ignore") + suffix

    def _error(self, problem: str) -> LockKeyError:
        return LockKeyError(f"{self._task}: {problem}")


def _label(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", type(function).__qualname__)


def _signature(task: TaskLike) -> inspect.Signature:
    """Return the signature that callers see; `self` is not part of it."""
    signature = inspect.signature(task.run)
    parameters = list(signature.parameters.values())
    if isinstance(inspect.getattr_static(task, "run"), staticmethod) or not parameters:
        return signature
    if parameters[0].kind is inspect.Parameter.VAR_POSITIONAL:
        return signature
    return signature.replace(parameters=parameters[1:])
