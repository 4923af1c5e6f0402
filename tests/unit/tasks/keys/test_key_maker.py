"""From a call to its lock keys."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from uuid import UUID

import pydantic
import pytest
from celery import Celery, Task
from hypothesis import given
from hypothesis import strategies as st

from celery_redlock.errors import LockKeyError
from celery_redlock.tasks.keys.key_maker import KeyMaker
from tests.support.commands import keys_of


def task_of(function: Callable[..., Any], **options: Any) -> Any:
    app = Celery("keys", broker="memory://", set_as_current=False)
    app.task(name="bank.settle", shared=False, **options)(function)
    app.finalize()
    return type(app.tasks["bank.settle"])


def settle(account_id, amount=0, *, note=None):
    pass


def key_of(spec: Any, *args: Any, **kwargs: Any) -> str:
    (key,) = KeyMaker(task_of(settle), spec).keys_for(args, kwargs, "")
    return key.text


def test_true_asks_for_the_default_key() -> None:
    assert key_of(True, 1, note="x") == key_of(None, 1, note="x")


def test_the_default_key_is_the_same_in_every_release() -> None:
    # A change here would let old and new workers run the same task at once during a deployment.
    assert key_of(None, 1) == "bank.settle:9905c9714b47e83a7f05bc6f476c6229"


SCALARS = st.none() | st.integers() | st.text() | st.booleans()


@given(SCALARS, SCALARS)
@pytest.mark.parametrize("spec", [None, "a:{account_id!s}:{amount!s}"])
def test_positional_keyword_and_defaulted_calls_agree(spec: Any, one: Any, other: Any) -> None:
    maker = KeyMaker(TASK, spec)
    keys = maker.keys_for((one, other), {}, "")
    assert keys == maker.keys_for((one,), {"amount": other}, "")
    assert keys == maker.keys_for((), {"amount": other, "account_id": one}, "")
    assert maker.keys_for([one], {}, "") == maker.keys_for((), {"account_id": one, "amount": 0}, "")


TASK = task_of(settle)
AWKWARD = st.text(alphabet=":%/-_ x17AFéÄ#{}\ud800", max_size=5)
TEMPLATES = [
    None,
    "a:{account_id}:{amount}",
    "{account_id}-{amount}",
    "{account_id}x{amount}",
    "{account_id}7x{amount}",
    "{account_id}_A_{amount}_tail",
    "{account_id} {amount}",
    "{account_id}#{amount}",
    "{account_id}é{amount}",
    "{account_id}}}{{{amount}",
    "{account_id}::{amount}",
]


@given(AWKWARD, AWKWARD, AWKWARD, AWKWARD)
@pytest.mark.parametrize("spec", TEMPLATES)
def test_no_two_argument_sets_collide_through_separators(
    spec: Any, a: str, b: str, c: str, d: str
) -> None:
    maker = KeyMaker(TASK, spec)
    same = maker.keys_for((a, b), {}, "") == maker.keys_for((c, d), {}, "")
    assert same == ((a, b) == (c, d))


@given(st.lists(AWKWARD, max_size=2), st.text(alphabet="%#0123456789ABCDEF"))
@pytest.mark.parametrize("spec", TEMPLATES)
def test_a_text_cannot_pass_for_a_container(spec: Any, items: list[str], text: str) -> None:
    maker = KeyMaker(TASK, spec)
    assert maker.keys_for((items, text), {}, "") != maker.keys_for((text, items), {}, "")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (7, "7"),
        (-7, "-7"),
        (True, "1"),
        (1.0, "1"),
        (0.25, "0.25"),
        (Decimal("1.50"), "1.5"),
        ("seven", "seven"),
        ("", ""),
        ("ana+x@example.org", "ana+x@example.org"),
        (UUID(int=7), "00000000-0000-0000-0000-000000000007"),
        ("Zoë", "Zoë"),
        ("1:2", "1%3A2"),
        ("100%", "100%25"),
        ("a b\n", "a%20b%0A"),
        ("\ud800", "%ED%A0%80"),
    ],
)
def test_simple_values_stay_readable_in_a_template(value: Any, text: str) -> None:
    assert key_of("account:{account_id}", value) == f"account:{text}"


@pytest.mark.parametrize(
    ("spec", "value", "key"),
    [
        ("a:{account_id!s}", None, "a:None"),
        ("a:{account_id!s}", "x y", "a:x%20y"),
        ("a:{account_id!s}", 1.0, "a:1"),
        ("a:{account_id!s:>5}", None, "a:%20None"),
        ("a:{account_id!s:.1}", 4711, "a:4"),
        ("a:{account_id!s:0>6}", 4711, "a:004711"),
        ("a:{account_id:06d}", 4711, "a:004711"),
        ("a:{account_id.id!s}", {"id": None}, "a:None"),
        ("{account_id:05d}", 42, "00042"),
        ("{account_id:.1f}", 1.25, "1.2"),
        ("{account_id:>3}", "a", "%20%20a"),
        ("{{a}}:{account_id}", 1, "{a}:1"),
    ],
)
def test_a_template_formats_a_value_before_it_encodes_it(spec: str, value: Any, key: str) -> None:
    assert key_of(spec, value) == key


def test_a_key_that_is_too_long_is_not_printed() -> None:
    for spec in ("a:{account_id}", lambda account_id: account_id):
        with pytest.raises(LockKeyError) as caught:
            key_of(spec, "secret" * 10**6)
        assert len(str(caught.value)) < 300
        assert "secret" not in str(caught.value)


def test_a_template_compares_by_text() -> None:
    assert key_of("account:{account_id}", 1) == key_of("account:{account_id}", "1")


def test_one_value_has_one_text_in_the_templates_of_all_tasks() -> None:
    assert key_of("a:{account_id}:{amount}", "x", 5) == key_of("a:x:{account_id}", 5)


def test_a_template_without_placeholders_is_one_key_for_all_calls() -> None:
    assert key_of("nightly-report", 1) == key_of("nightly-report", 2) == "nightly-report"


@dataclass
class User:
    id: int
    roles: tuple[str, ...] = ()


@pytest.mark.parametrize("user", [User(5, ("admin",)), {"id": 5, "roles": ["admin"]}])
@pytest.mark.parametrize(
    "spec", ["{account_id.id}:{account_id.roles[0]}", "{account_id[id]}:admin"]
)
def test_a_template_reads_parts_of_an_object_and_of_its_mapping_alike(user: Any, spec: str) -> None:
    assert key_of(spec, user) == "5:admin"


def test_a_container_in_a_template_is_a_digest() -> None:
    assert re.fullmatch(r"a:%%[0-9A-F]{32}", key_of("a:{account_id}", [1, 2]))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("account:{acount_id}", "names 'acount_id', which the task does not have; its arguments "
         "are: account_id, amount, note"),
        ("{account_id}{amount}", "next to each other"),
        ("{account_id}7F{amount}", "next to each other"),
        ("{account_id!r}", "uses the conversion !r"),
        ("{account_id:{amount}}", "nests a placeholder"),
        ("{}", "has the placeholder {}"),
        ("{0}", "has the placeholder {0}"),
        ("{account_id.__class__}", "has the placeholder"),
        ("account:{account_id", "is not a format template"),
        ("account:}", "is not a format template"),
        ("redlock-meta:{account_id}", "reserved"),
        ("", "cannot be empty"),
        (lambda acount_id: "", "names 'acount_id', which the task does not have"),
    ],
)  # fmt: skip
def test_a_key_that_cannot_work_is_refused_at_declaration(spec: Any, message: str) -> None:
    with pytest.raises(LockKeyError, match=re.escape(message)) as caught:
        KeyMaker(TASK, spec)
    assert str(caught.value).startswith("task 'bank.settle': ")


@pytest.mark.parametrize(
    ("spec", "args", "message"),
    [
        (None, (), "missing a required argument: 'account_id'"),
        (None, (1, 2, 3), "too many positional arguments"),
        (None, (object(),), "argument 'account_id' holds a builtins.object, which has no form"),
        ("{account_id}", (object(),), "{account_id} holds a builtins.object, which has no form"),
        ("{account_id}", (float("nan"),), "{account_id} holds a not-a-number"),
        ("{account_id}", ("",), "'{account_id}': {account_id} is empty, and so is the key"),
        ("a:{account_id}", (None,), "{account_id} is None, so all calls without it would share"),
        ("a:{amount.id}", (1, {"id": None}), "{amount.id} is None"),
        (
            "a:{account_id}",
            ("x" * 10**7,),
            "{account_id} has 10,000,000 characters; at most 10,000",
        ),
        (lambda account_id: "", (1,), "returned an empty key"),
        ("{account_id.id}", (None,), "{account_id.id} reads 'id' of None"),
        ("{account_id.pk}", (User(5),), "reads 'pk' of User; it has id, roles"),
        ("{account_id.id}", ({"name": 1},), "has no item 'id'; it has name"),
        ("{account_id[3]}", ([1],), "has no element 3; it has 1"),
        ("{account_id[_x]}", (User(5),), "private name '_x'"),
        ("{account_id.upper}", ("x",), "which is a method"),
        ("{account_id:d}", ("x",), "does not take the format 'd'"),
        ("{account_id:d}", ([1],), "does not take the format 'd'"),
        (lambda account_id: 7, (1,), "returned int; it must return a str"),
        (lambda account_id: [], (1,), "returned list; it must return a str"),
        (lambda account_id: account_id["x"], (1,), "failed: TypeError"),
        (lambda account_id: "redlock-meta:guard", (1,), "reserved"),
        (lambda account_id: "\ud800", (1,), "cannot be written as UTF-8"),
    ],
)
def test_a_call_without_a_key_is_refused_by_name(spec: Any, args: Any, message: str) -> None:
    with pytest.raises(LockKeyError, match=re.escape(message)) as caught:
        KeyMaker(TASK, spec).keys_for(args, {}, "")
    assert str(caught.value).startswith("task 'bank.settle': ")


@pytest.mark.parametrize(
    "function",
    [
        lambda account_id: f"own:{account_id}",
        lambda account_id, amount: f"own:{account_id}",
        lambda account_id, **_rest: f"own:{account_id}",
        lambda account_id, other=None: f"own:{account_id}",
        lambda *args, **kwargs: f"own:{args[0]}",
    ],
)
def test_a_function_gets_the_arguments_that_it_names(function: Any) -> None:
    assert key_of(function, 1) == key_of(function, account_id=1) == "own:1"


def test_a_functions_key_is_used_as_it_is() -> None:
    assert key_of(lambda account_id: f"own:{account_id} x", "a:b") == "own:a:b x"


def test_the_keys_of_a_set_are_in_the_same_order_in_each_process() -> None:
    maker = KeyMaker(TASK, lambda account_id: {f"{name}:{account_id}" for name in "bca"})
    assert maker.keys_for((1,), {}, "") == keys_of(("a:1", "b:1", "c:1"))


def test_several_keys_are_in_the_order_of_the_option_and_each_is_there_once() -> None:
    spec = ["b:{amount}", lambda account_id: [f"a:{account_id}", "b:2"], "b:{amount}"]
    assert KeyMaker(TASK, spec).keys_for((1, 2), {}, "") == keys_of(("b:2", "a:1"))


@given(st.text(alphabet="é:x", min_size=500, max_size=600), st.integers(0, 499))
def test_a_long_key_is_shortened_and_stays_distinct(text: str, position: int) -> None:
    other = f"{text[:position]}y{text[position + 1 :]}"
    maker = KeyMaker(TASK, "account:{account_id}")
    (key,), (changed,) = maker.keys_for((text,), {}, ""), maker.keys_for((other,), {}, "")
    assert key != changed
    assert len(key.stored.encode()) <= 512
    assert key.text.startswith("account:")


# Task shapes.


def bound_body(self, account_id, amount=0):
    pass


class Order(pydantic.BaseModel):
    id: int
    tags: set[str] = set()
    ref: UUID | None = None


def order_body(order: Order, optional: Order | None = None):
    pass


class ClassTask(Task):
    name = "class.task"

    def run(self, account_id, amount=0):
        pass


def class_based() -> Any:
    app = Celery("keys", broker="memory://", set_as_current=False)
    return type(app.register_task(ClassTask()))


SHAPES = {
    "function": TASK,
    "bind": task_of(bound_body, bind=True),
    "autoretry_for": task_of(bound_body, bind=True, autoretry_for=(OSError,)),
    "typing off": task_of(bound_body, bind=True, typing=False),
    "class": class_based(),
}


@pytest.mark.parametrize("task", SHAPES.values(), ids=SHAPES)
def test_every_shape_of_task_has_its_callers_signature(task: Any) -> None:
    maker = KeyMaker(task, "{account_id}:{amount}")
    assert maker.keys_for((1,), {}, "") == maker.keys_for((), {"account_id": 1, "amount": 0}, "")
    with pytest.raises(LockKeyError, match="too many positional arguments"):
        maker.keys_for((1, 2, 3), {}, "")


def variadic(first, *rest, **extra):
    pass


def test_variadic_arguments_take_part() -> None:
    maker = KeyMaker(task_of(variadic))
    keys = {
        maker.keys_for(args, kwargs, "")
        for args, kwargs in [((1,), {}), ((1, 2), {}), ((1, 2, 3), {}), ((1,), {"rest": 2})]
    }
    assert len(keys) == 4


@pytest.mark.parametrize(
    "spec",
    [
        "{first}:{rest[0]}:{tenant}",
        lambda first, rest, tenant: f"{first}:{rest[0]}:{tenant}",
    ],
    ids=["template", "function"],
)
def test_a_key_is_made_of_variadic_arguments(spec: Any) -> None:
    maker = KeyMaker(task_of(variadic), spec)
    assert maker.keys_for((1, 2), {"tenant": "eu"}, "") == keys_of(("1:2:eu",))


def test_a_missing_name_of_a_variadic_task_is_refused_by_name() -> None:
    maker = KeyMaker(task_of(variadic), "{tenant}")
    with pytest.raises(LockKeyError, match="the call has no argument 'tenant'"):
        maker.keys_for((1,), {}, "")


@pytest.mark.parametrize("spec", [None, "order:{order.id}", "order:{order}"])
def test_a_model_and_its_json_give_one_key(spec: Any) -> None:
    order = Order(id=1, tags={"a", "b", "c"}, ref=UUID(int=1))
    maker = KeyMaker(task_of(order_body), spec)
    assert maker.keys_for((order,), {}, "") == maker.keys_for(
        (order.model_dump(mode="json"),), {}, ""
    )


def test_a_task_with_pydantic_has_its_callers_signature() -> None:
    # Celery 5.4 takes the option and does nothing with it.
    assert KeyMaker(task_of(order_body, pydantic=True), "order:{order.id}").keys_for(
        (), {"order": {"id": 3}}, ""
    ) == keys_of(("order:3",))
