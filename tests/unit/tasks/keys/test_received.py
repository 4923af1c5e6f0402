"""One call has one key: at publish, in the worker, in a retry, eagerly and for who asks."""

from __future__ import annotations

import json
from collections import OrderedDict, namedtuple
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kombu.serialization import (
    disable_insecure_serializers,
    dumps,
    enable_insecure_serializers,
    loads,
)

from celery_redlock.errors import LockKeyError
from celery_redlock.protocol.keys import Key
from celery_redlock.tasks.keys.key_maker import KeyMaker
from celery_redlock.tasks.message.envelope import Envelope
from tests.support.tasks import Bench
from tests.unit.tasks.jobs import retry_once
from tests.unit.tasks.keys.test_key_maker import settle, task_of

TASK = task_of(settle)
Pair = namedtuple("Pair", "x y")


class Level(IntEnum):
    HIGH = 3


class Color(StrEnum):
    RED = "red"


class Mixed(str, Enum):  # noqa: UP042  # another class of texts
    A = "a"


class Reduced:
    """An object that kombu's JSON asks for its form."""

    def __json__(self) -> dict[Any, Any]:
        return {1: "x"}


class Named:
    """An object whose form in JSON is a text."""

    def __json__(self) -> str:
        return "ada"


class Confirmed:
    """An object whose form in JSON is a truth value."""

    def __json__(self) -> bool:
        return True


class Short(UUID):
    """A value that JSON has, and that has a form of its own."""

    def __json__(self) -> int:
        return 7


class Nested:
    """An object whose form in JSON has another such object, which it also has itself."""

    def __init__(self) -> None:
        self.x = "mine"

    def __json__(self) -> dict[str, Any]:
        return {"x": Named()}


def written(account_id: Any) -> str:
    """Return a key that shows every class and name of what the function got."""
    return f"own:{account_id!r}"


PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
MOMENTS = st.datetimes(timezones=st.none() | st.timezones())
JSON_ONLY = st.sampled_from([Level.HIGH, Color.RED, Mixed.A]) | st.decimals(allow_nan=False)
LEAVES = {
    "json": PLAIN | MOMENTS | st.dates() | st.times() | st.uuids() | st.binary() | JSON_ONLY,
    "pickle": PLAIN | MOMENTS | st.dates() | st.times() | st.uuids() | st.binary() | JSON_ONLY,
    "yaml": st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters(codec="ascii", categories=("L", "N", "P", "Zs")))
    | st.dates()
    | st.binary(),
    "msgpack": st.none() | st.booleans() | st.integers(0, 9) | st.floats(allow_nan=False),
}
NAMES = st.text().filter(lambda name: not name.startswith("__"))
NAMES_OF = {
    "json": NAMES | st.integers() | st.booleans() | st.none() | st.floats(allow_nan=False),
    "pickle": NAMES | st.integers() | st.booleans() | st.none() | st.floats() | st.dates(),
    "yaml": st.integers() | st.booleans() | st.none(),
    "msgpack": st.text("abc"),
}
SERIALIZERS = list(LEAVES)


def keys_of(maker: KeyMaker, value: Any) -> tuple[Key, ...] | str:
    """Return the keys of a call, or why there are none."""
    try:
        return maker.keys_for((value,), {}, "")
    except LockKeyError as refused:
        return str(refused)


def values(serializer: str) -> st.SearchStrategy[Any]:
    def containers(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        names = NAMES_OF[serializer]
        return st.lists(children) | st.tuples(children) | st.dictionaries(names, children)

    return st.recursive(LEAVES[serializer], containers, max_leaves=10)


def sent(value: Any, serializer: str) -> Any:
    content_type, encoding, body = dumps([value], serializer=serializer)
    return loads(body, content_type, encoding, accept=[content_type])[0]


@pytest.mark.parametrize("serializer", SERIALIZERS)
@pytest.mark.parametrize("spec", [None, "a:{account_id!s}"])
@given(st.data())
def test_a_call_has_one_key_on_both_sides_of_a_serializer(
    serializer: str, spec: Any, data: st.DataObject
) -> None:
    value = data.draw(values(serializer))
    maker = KeyMaker(TASK, spec)
    keys = keys_of(maker, value)
    if isinstance(keys, str):
        assert "one name in JSON" in keys
        return
    once = sent(value, serializer)
    assert keys_of(maker, once) == keys
    assert keys_of(maker, sent(once, serializer)) == keys


@given(values("json"))
def test_a_function_gets_one_form_on_both_sides_of_json(value: Any) -> None:
    maker = KeyMaker(TASK, lambda account_id: [f"own:{written(account_id)!a:.400}"])
    keys = keys_of(maker, value)
    if isinstance(keys, str):
        assert "one name in JSON" in keys
        return
    assert keys_of(maker, sent(value, "json")) == keys


@pytest.mark.parametrize("serializer", ["json", "pickle"])
@pytest.mark.parametrize(
    "value",
    [
        {1: 2},
        {True: "a", None: "b", 1.5: "c"},
        {"a": {7: [(1, 2)]}},
        (1, (2, 3)),
        Pair(1, 2),
        OrderedDict({2: 1}),
        Level.HIGH,
        Color.RED,
        Mixed.A,
        {Level.HIGH: Color.RED, Mixed.A: 1},
        datetime(2024, 5, 1, 12, tzinfo=ZoneInfo("Europe/Berlin")),
        datetime(2024, 5, 1, 12, tzinfo=UTC),
        UUID(int=7),
        Decimal("1.50"),
        b"\xff",
        Reduced(),
        Named(),
        Confirmed(),
        [Confirmed()],
        Short(int=1),
        Nested(),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("spec", [None, "a:{account_id}", written, "a:{account_id:>40}"])
def test_a_value_that_a_serializer_changes_has_one_key(
    serializer: str, value: Any, spec: Any
) -> None:
    maker = KeyMaker(TASK, spec)
    assert keys_of(maker, sent(value, serializer)) == keys_of(maker, value)


def test_a_template_reads_the_parts_that_an_object_has_in_json() -> None:
    maker = KeyMaker(TASK, "a:{account_id.x}")
    assert [key.text for key in maker.keys_for((Nested(),), {}, "")] == ["a:ada"]
    assert keys_of(maker, sent(Nested(), "json")) == keys_of(maker, Nested())


@pytest.mark.parametrize(
    ("spec", "value"),
    [
        ("{account_id[1]}", {1: "a"}),
        ("{account_id[true]}", {True: "a"}),
        ("{account_id[null]}", {None: "a"}),
        ("{account_id[1.5]}", {1.5: "a"}),
        ("{account_id[x][7]}", {"x": {7: "a"}}),
    ],
)
def test_a_template_reads_a_name_as_json_writes_it(spec: str, value: Any) -> None:
    maker = KeyMaker(TASK, spec)
    assert (
        maker.keys_for((value,), {}, "")
        == maker.keys_for((sent(value, "json"),), {}, "")
        == (Key.of("", "a"),)
    )


@pytest.mark.parametrize(
    "spec", [None, "{account_id}", "{account_id[1]}", lambda account_id: "key"]
)
def test_names_that_are_one_in_json_are_refused(spec: Any) -> None:
    with pytest.raises(LockKeyError, match=r"has the names 1 and '1', which are one name in JSON"):
        KeyMaker(TASK, spec).keys_for(({1: "a", "1": "b"},), {}, "")


def test_values_that_no_serializer_makes_equal_have_their_own_keys() -> None:
    keys = {KeyMaker(TASK, None).keys_for((value,), {}, "") for value in ({1: 2}, {2: 2}, {1: "2"})}
    assert len(keys) == 3


ORDER = {1: ("a", {True: None, 2.5: Level.HIGH})}
SPECS = [True, "order:{order}", "order:{order[1]}", lambda order: json.dumps(order)]


@pytest.fixture(params=SPECS, ids=["default", "template", "path", "function"])
def task(bench: Bench, request: pytest.FixtureRequest) -> Any:
    """A unique task whose body shows the key that its worker made."""
    return bench.task(
        lambda self, order: self.lease.key,
        bind=True,
        lock_key=request.param,
        lock_mode="until_executed",
    )


@pytest.mark.parametrize("serializer", [None, "json", "pickle"])
def test_a_worker_makes_the_key_of_the_publisher(
    bench: Bench, task: Any, serializer: str | None
) -> None:
    enable_insecure_serializers()
    try:
        request = bench.send(task, ORDER, serializer=serializer)
    finally:
        disable_insecure_serializers(["json"])
    reservation = Envelope.read(request).reservation
    assert [bench.run(request).value] == [reservation.node_keys[0].removeprefix("redlock:")]


def test_a_call_with_such_arguments_is_a_duplicate_and_has_a_holder(
    bench: Bench, task: Any
) -> None:
    first = task.delay(ORDER)
    assert task.delay(ORDER).id == first.id
    holder = task.lock_holder(ORDER)
    assert holder.task_id == first.id
    assert task.release_lock(ORDER)


@pytest.mark.parametrize("always_eager", [False, True])
def test_an_eager_call_has_the_same_key(bench: Bench, task: Any, always_eager: bool) -> None:
    request = bench.send(task, ORDER)
    key = bench.run(request).value
    bench.app.conf.task_always_eager = always_eager
    result = task.apply_async((ORDER,)) if always_eager else task.apply((ORDER,))
    assert result.get() == key


def test_a_retry_has_the_same_key(bench: Bench) -> None:
    def body(self: Any, order: Any) -> str:
        retry_once(self)
        return str(self.lease.key)

    task = bench.task(body, bind=True, lock_key=True, lock_mode="until_executed")
    request = bench.send(task, ORDER)
    key = task.lock_holder(ORDER).key
    bench.run(request)
    assert bench.run(bench.receive()).value == key
