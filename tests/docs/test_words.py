"""The glossary and the code agree, and texts use the words of the glossary."""

from __future__ import annotations

import ast
import re
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.docs.blocks import PAGES, ROOT
from tests.docs.words import Finding, Term, findings_in, forbidden, terms, texts

pytestmark = pytest.mark.full

PACKAGE = ROOT / "celery_redlock"
TERMS = terms()

#: Everything of ours that people read beside the code.
TEXTS = sorted(
    path
    for path in {
        *PAGES,
        *ROOT.glob("*.md"),
        *(ROOT / "docker").glob("*.md"),
        *(ROOT / "examples").rglob("*.md"),
        *(ROOT / "docs" / "_ext").rglob("*.py"),
    }
    if "node_modules" not in path.parts
)

PACKAGES = ("", *sorted(path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()))

VERBS = ("send", "receive", "acquire", "extend", "release", "expire", "requeue", "log")
#: What a function that is named after a verb has to use, as a part of a name in its body.
ACTS = {
    "send": {"send", "sendall", "hand", "post", "exchange", "publish", "async", "execute", "kill"},
    "receive": {"recv", "receive", "read"},
    "acquire": {"acquire", "acquired", "attempt", "granted", "reserve", "keys"},
    "extend": {"extend", "pexpire", "ttl"},
    "release": {"release", "delete", "actions", "close", "held"},
    "expire": {"expires", "ttl", "deadline", "remaining", "cancel"},
    "requeue": {"requeue", "republish"},
    "log": {"logger", "log", "warn", "info"},
}
Function = ast.FunctionDef | ast.AsyncFunctionDef


def found(paths: list[Path]) -> list[str]:
    return [str(finding) for path in paths for finding in findings_in(path)]


def sources(package: str) -> list[Path]:
    if not package:
        return sorted(PACKAGE.glob("*.py"))
    return [
        path for path in sorted((PACKAGE / package).rglob("*")) if path.suffix in (".py", ".lua")
    ]


@pytest.mark.parametrize("term", TERMS, ids=lambda term: term.name)
def test_a_term_is_defined_in_one_or_two_sentences_or_three(term: Term) -> None:
    assert 1 <= len(re.findall(r"[.:;](?: |$)", term.text)) <= 6, term.text
    assert len(term.text) <= 320


@pytest.mark.parametrize("term", TERMS, ids=lambda term: term.name)
def test_the_code_has_a_name_for_every_term(term: Term) -> None:
    assert term.code
    for name in term.code:
        resolve(name)


def resolve(name: str) -> Any:
    """Return what a dotted name is."""
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            value: Any = import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for part in parts[cut:]:
            value = getattr(value, part)
        return value
    raise LookupError(name)


def test_the_glossary_has_the_terms_that_readers_look_up() -> None:
    names = {term.name for term in TERMS}
    assert {"Node", "Quorum", "Lease", "Fencing token", "Reservation", "Tick", "Leader"} <= names
    assert len(names) == len(TERMS) >= 25


@pytest.mark.parametrize("verb", VERBS)
def test_every_reserved_verb_is_in_the_glossary(verb: str) -> None:
    assert f"\n| *{verb}* | " in (ROOT / "docs" / "reference" / "glossary.md").read_text()


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_uses_the_words_of_the_glossary(page: Path) -> None:
    assert not found([page])


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_uses_the_words_of_the_glossary(package: str) -> None:
    assert not found(sources(package))


@cache
def functions() -> list[tuple[Path, Function]]:
    return [
        (path, node)
        for path in sorted(PACKAGE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, Function)
    ]


def words_of(name: str) -> list[str]:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower().strip("_").split("_")


def words_used(function: Function) -> set[str]:
    """Return the parts of all names in a function's body."""
    names = set()
    for node in ast.walk(ast.Module(body=function.body, type_ignores=[])):
        if isinstance(node, ast.Name):
            names |= set(words_of(node.id))
        elif isinstance(node, ast.Attribute):
            names |= set(words_of(node.attr))
    return names


def has_code(function: Function) -> bool:
    """Return whether a function does anything: a method of a Protocol does not."""
    return any(
        not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant))
        for statement in function.body
    )


def is_property(function: Function) -> bool:
    return any("property" in ast.unparse(decorator) for decorator in function.decorator_list)


def odd_names(verb: str, items: list[tuple[Path, Function]]) -> list[str]:
    """Return the functions that are named after a verb and do not do what it means."""
    return [
        f"{path.relative_to(ROOT)}:{function.lineno}: {function.name}"
        for path, function in items
        if words_of(function.name)[0] == verb
        and has_code(function)
        and not is_property(function)
        and not words_used(function) & ACTS[verb]
    ]


@pytest.mark.parametrize("verb", VERBS)
def test_functions_named_after_a_verb_do_what_it_means(verb: str) -> None:
    assert not odd_names(verb, functions())


def only_logs(function: Function) -> bool:
    """Return whether each call in a function is one of a logger's, and there is one."""
    calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
    logging = [call for call in calls if ast.unparse(call.func).startswith("logger.")]
    statements = [
        s for s in ast.walk(function) if isinstance(s, ast.Expr | ast.Assign | ast.Return)
    ]
    return (
        bool(logging)
        and len(statements) <= len(logging) + (ast.get_docstring(function) is not None)
        and not any(
            isinstance(node, ast.Await | ast.Yield | ast.Raise) for node in ast.walk(function)
        )
    )


def test_a_function_that_only_logs_is_named_so() -> None:
    assert not [
        f"{path.relative_to(ROOT)}:{function.lineno}: {function.name}"
        for path, function in functions()
        if only_logs(function) and not {"log", "warn"} & set(words_of(function.name))
    ]


#: Words that no name in the package has.
ODD_IN_NAMES = frozenset(
    {"say", "says", "said", "tell", "tells", "told", "untold", "mend", "owed"}
    | {"renewal", "renewed", "renewing", "twin", "twins", "hop", "hops", "patience"}
)


@pytest.mark.parametrize("package", PACKAGES)
def test_names_use_the_words_of_the_glossary(package: str) -> None:
    assert not [
        f"{path.relative_to(ROOT)}:{node.lineno}: {name}"
        for path in sources(package)
        if path.suffix == ".py"
        for node in ast.walk(ast.parse(path.read_text()))
        for name in [
            getattr(node, "name", None) or getattr(node, "id", None) or getattr(node, "arg", None)
        ]
        if isinstance(name, str) and ODD_IN_NAMES & set(words_of(name))
    ]


# The checks find what they are for.


@pytest.fixture
def module(tmp_path: Path) -> Any:
    def write(source: str) -> Path:
        path = tmp_path / "module.py"
        path.write_text(source)
        return path

    return write


@pytest.mark.parametrize(
    ("source", "line", "word"),
    [
        ('"""Tell whether it works."""\n', 1, "Tell"),
        ("x = 1  # it is renewed\n", 1, "renewed"),
        ("x = 1\n# it lasts so\n# long as this\n", 2, "so # long"),
        ('x = f"{1} goes "\ny = "on"\n', 1, 'goes " y = "on'),
        ('"""What it is."""\n', 1, "What it is."),
        ('"""It is. Who waits is last."""\n', 1, "Who waits is last."),
    ],
)
def test_a_forbidden_word_is_found(module: Any, source: str, line: int, word: str) -> None:
    (finding,) = (each for each in findings_in(module(source)) if each.line == line)
    assert isinstance(finding, Finding)
    assert " ".join(finding.word.split()) in (word, 'goes " "on')


@pytest.mark.parametrize(
    "source",
    [
        '"""Return whether it works; see `tell`."""\n',
        "file.tell()\n",
        '"""Is it there? What else? A renew_deadline."""\n',
        '"""It is standby."""\n',
    ],
)
def test_other_words_are_not(module: Any, source: str) -> None:
    assert not list(findings_in(module(source)))


def test_code_on_a_page_is_not_read(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# What it is\n\n```python\nsay(1)\n```\n\nA `told` name.\n")
    assert not texts(page).split("A")[0].strip()
    assert not list(findings_in(page))


def test_every_row_of_words_is_read() -> None:
    patterns = [pattern.pattern for pattern, _ in forbidden()]
    assert len(patterns) > 30
    assert any("twin" in pattern for pattern in patterns)


@pytest.mark.parametrize(
    ("verb", "source"),
    [
        ("send", "def send_it():\n    logger.info('x')\n"),
        ("requeue", "def requeue_it():\n    return 1\n"),
        ("log", "def log_it():\n    socket.sendall(b'')\n"),
    ],
)
def test_a_function_that_does_something_else_than_its_name_is_found(verb: str, source: str) -> None:
    (function,) = (node for node in ast.parse(source).body if isinstance(node, Function))
    assert odd_names(verb, [(PACKAGE / "x.py", function)])
