"""Node URLs: what is taken, what is refused with the mend, and no password ever shown."""

from __future__ import annotations

import contextlib
import inspect
import pickle
import re
import sys
from pathlib import Path

import pytest
import redis

from celery_redlock import ConfigurationError, Redlock
from celery_redlock.transport import parse_node, parse_nodes
from celery_redlock.transport.redis.connector import Connector

SECRET = "s3cret"


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("redis://host", "redis://host:6379/0"),
        ("redis://HOST:7000/3", "redis://host:7000/3"),
        ("  redis://host:7000 ", "redis://host:7000/0"),
        (f"redis://:{SECRET}@host", "redis://host:6379/0"),
        (f"redis://ana:{SECRET}@host:1/2", "redis://host:1/2"),
        (f"rediss://ana:{SECRET}@host?ssl_cert_reqs=none", "rediss://host:6379/0"),
        ("redis://[::1]:7000", "redis://[::1]:7000/0"),
        (f"unix://ana:{SECRET}@/run/r.sock?db=1", "unix:///run/r.sock"),
        ("redis+sentinel://s1,S2:7,[::1]/g", "redis+sentinel://s1:26379,s2:7,[::1]:26379/g"),
        (f"redis+sentinel://ana:{SECRET}@s1/g/2", "redis+sentinel://s1:26379/g/2"),
        (f"rediss+sentinel://s1/g/0?sentinel_password={SECRET}", "rediss+sentinel://s1:26379/g"),
        ("memory://one", "memory://one"),
        (f"memory://ana:{SECRET}@one", "memory://one"),
    ],
)
def test_a_node_is_named_without_user_and_password(url: str, name: str) -> None:
    node = parse_node(url)
    assert name == node.name
    assert SECRET not in repr(node)
    assert name == pickle.loads(pickle.dumps(node)).name


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("", "no scheme at all"),
        ("localhost:6379", "starts with redis://"),
        (f"http://ana:{SECRET}@host", "not with http://"),
        ("redis://", "names no host"),
        (f"redis://:{SECRET}@:6379", "names no host"),
        (f"redis://host:{SECRET}", "port is not a number"),
        (f"redis://host:99999/{SECRET}", "port is not a number"),
        (f"redis://ana:{SECRET}/1@host:6379", "port is not a number"),
        ("redis://host/one", "database number"),
        (f"redis://ana:12/{SECRET}@host:6379", "Percent-encode"),
        (f"redis://ana:12#{SECRET}@host:6379", "Percent-encode"),
        (f"redis://ana:12?{SECRET}@host:6379", "Percent-encode"),
        ("redis://[::1", "malformed"),
        ("unix://", "need a path"),
        (7, "URL string, not int"),
        (None, "URL string, not NoneType"),
    ],
)
def test_a_malformed_url_is_refused_with_an_example_and_without_the_password(
    url: object, says: str
) -> None:
    with pytest.raises(ConfigurationError, match=says) as refused:
        parse_node(url)  # type: ignore[arg-type]
    assert "Write one of: redis://" in str(refused.value)
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize(
    "urls",
    [
        ["redis://a", "redis://a:6379/1"],
        ["redis://a:1", f"redis://ana:{SECRET}@A:1"],
        ["redis://a:1", "rediss://a:1"],
        ["unix:///run/a", "unix:///run/a?db=2"],
        ["memory://a", "memory://b", "memory://a"],
    ],
)
def test_one_server_named_twice_is_refused(urls: list[str]) -> None:
    with pytest.raises(ConfigurationError, match="two votes") as refused:
        parse_nodes(urls)
    assert SECRET not in str(refused.value)


def test_a_malformed_url_among_several_is_named_by_its_place_without_its_password() -> None:
    with pytest.raises(ConfigurationError, match="Node 2 of 3: ") as refused:
        parse_nodes(["redis://:open-sesame@a", "redis://:open/sesame@b", "redis://c"])
    assert "sesame" not in str(refused.value)


@pytest.mark.parametrize("urls", ["", " , ", [], 7, None])
def test_no_nodes_at_all_are_refused(urls: object) -> None:
    with pytest.raises(ConfigurationError, match="Write one"):
        parse_nodes(urls)  # type: ignore[arg-type]


def test_one_string_may_hold_several_urls() -> None:
    names = [node.name for node in parse_nodes("redis://a, redis://b,redis://c,")]
    assert names == ["redis://a:6379/0", "redis://b:6379/0", "redis://c:6379/0"]


def even_nodes(request: pytest.FixtureRequest) -> list[str]:
    return [f"memory://{request.node.name}-{index}" for index in range(4)]


def test_an_even_number_of_nodes_is_logged_once(
    request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        Redlock(even_nodes(request)).close()
    (line,) = caplog.messages
    assert line.startswith("4 lock nodes tolerate 1 failure, the same as 3.")


def test_an_odd_number_of_nodes_is_not_logged(
    request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    Redlock(even_nodes(request)[:3]).close()
    assert caplog.messages == []


#: The options of each kind of connection that redis-py has.
OPTIONS = {
    option
    for kind in (redis.Connection, redis.SSLConnection, redis.UnixDomainSocketConnection)
    for base in kind.__mro__
    if "__init__" in vars(base)
    for option in inspect.signature(base).parameters
} - {"args", "kwargs"}


def test_memory_nodes_are_not_mixed_with_servers() -> None:
    with pytest.raises(ConfigurationError, match="cannot be mixed"):
        Redlock(["memory://a", "redis://b", "redis://c"])


def test_an_option_that_the_driver_does_not_take_is_refused_without_the_url() -> None:
    with pytest.raises(ConfigurationError, match="redis://host:6379/0") as refused:
        Redlock(f"redis://:{SECRET}@host?no_such_option=1")
    assert SECRET not in str(refused.value)


def test_a_client_shows_no_password() -> None:
    with Redlock(f"redis://ana:{SECRET}@host:7000/1") as client:
        assert client.node_names == ("redis://host:7000/1",)
        assert SECRET not in repr(client)


def test_a_client_instead_of_urls_is_refused_and_not_asked() -> None:
    with pytest.raises(ConfigurationError, match="are a list of URLs, not Redis"):
        parse_nodes(redis.Redis(port=1))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "query",
    [
        *("foo=1", "db=sesame", "protocol=4", "protocol=sesame", "ssl_cert_reqs=sesame"),
        *("maint_notifications_config=sesame", "port=7000", "driver_info=sesame"),
        *("connection_class=sesame", "retry=sesame", "retry_on_error=sesame"),
        *("event_dispatcher=sesame", "parser_class=sesame"),
    ],
)
def test_a_wrong_option_of_a_url_is_named_without_its_value(query: str) -> None:
    option = query.partition("=")[0]
    with pytest.raises(ConfigurationError, match=f"its URL has the option {option} ") as refused:
        Connector(parse_node(f"rediss://:{SECRET}@h?client_name=fine&{query}"), 1.0)
    assert str(refused.value).startswith("Lock node rediss://h:6379/0: ")
    assert not {"sesame", SECRET} & set(re.findall(r"\w+", str(refused.value)))


def test_a_wrong_option_of_the_connections_to_sentinels_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="has the option ssl_cert_reqs "):
        Redlock("redis+sentinel://s1,s2,s3/g?sentinel_tls=true&ssl_cert_reqs=sesame")


@pytest.mark.parametrize(
    ("query", "remedy"),
    [
        ("ssl_cert_reqs=maybe", "write none, optional or required"),
        ("protocol=4", "write 2 or 3"),
        ("credential_provider=os.getcwd", "let the provider alone supply the user"),
    ],
)
def test_what_a_wrong_option_of_a_url_may_be_is_named(query: str, remedy: str) -> None:
    with pytest.raises(ConfigurationError, match=remedy):
        Redlock(f"rediss://ana@h?{query}")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("no_such_module.ask", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("os.no_such_name", "AttributeError: module 'os' has no attribute 'no_such_name'"),
        ("os.path", "it is a module"),
        ("collections.abc.Sized", "TypeError: Can't instantiate abstract class"),
    ],
)
def test_a_name_by_which_nothing_gives_credentials_is_refused(name: str, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(f"({reason}")) as refused:
        Redlock(f"redis://h?credential_provider={name}")
    assert f"Lock node redis://h:6379/0: credential_provider={name} in" in str(refused.value)


def test_the_code_that_gives_credentials_may_be_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "logins_of_a_test.py").write_text("def login(): return ('ana', 'pw')")
    monkeypatch.chdir(tmp_path)
    with Redlock("redis://h?credential_provider=logins_of_a_test.login"):
        assert str(tmp_path) not in sys.path


@pytest.mark.parametrize("name", ["none", "optional", "required"])
def test_ssl_cert_reqs_is_spelled_as_redis_py_or_as_celery_spells_it(name: str) -> None:
    for spelled in (name, f"CERT_{name.upper()}"):
        connector = Connector(parse_node(f"rediss://h?ssl_cert_reqs={spelled}"), 1.0)
        assert connector._options["ssl_cert_reqs"] == name


@pytest.mark.parametrize("option", sorted(OPTIONS))
def test_any_option_of_redis_py_in_a_url_is_taken_or_refused(option: str) -> None:
    for base in ("redis://h", "rediss://h", "unix:///h"):
        for value in ("", "0", "4", "sesame", "true"):
            with contextlib.suppress(ConfigurationError):
                Connector(parse_node(f"{base}?{option}={value}"), 1.0)


@pytest.mark.parametrize(
    ("url", "sentinels", "master"),
    [
        ("redis+sentinel://:p@s1/g/2", ["redis://s1:26379"], "redis://:p@localhost/2"),
        ("rediss+sentinel://s1/g", ["rediss://s1:26379"], "rediss://localhost/0"),
        (
            "redis+sentinel://s1,s2/g?sentinel_username=ana&sentinel_password=%40",
            ["redis://ana:%40@s1:26379", "redis://ana:%40@s2:26379"],
            "redis://localhost/0",
        ),
        (
            "rediss+sentinel://s1/g?ssl_cert_reqs=none",
            ["rediss://s1:26379?ssl_cert_reqs=none"],
            "rediss://localhost/0?ssl_cert_reqs=none",
        ),
        (
            "rediss+sentinel://s1/g?ssl_cert_reqs=none&sentinel_tls=false",
            ["redis://s1:26379"],
            "rediss://localhost/0?ssl_cert_reqs=none",
        ),
        (
            "redis+sentinel://s1/g?ssl_cert_reqs=none&sentinel_tls=true",
            ["rediss://s1:26379?ssl_cert_reqs=none"],
            "redis://localhost/0",
        ),
    ],
)
def test_a_group_has_urls_of_its_sentinels_and_of_its_master(
    url: str, sentinels: list[str], master: str
) -> None:
    node = parse_node(url)
    assert (list(node.sentinels), node.url) == (sentinels, master)
    assert node.group == "g"


def test_commas_separate_sentinels_and_before_a_scheme_nodes() -> None:
    nodes = parse_nodes("redis+sentinel://s1,s2/a,redis://h, redis+sentinel://s1,s2/b")
    assert [node.name for node in nodes] == [
        "redis+sentinel://s1:26379,s2:26379/a",
        "redis://h:6379/0",
        "redis+sentinel://s1:26379,s2:26379/b",
    ]


def test_one_group_may_not_be_named_twice() -> None:
    with pytest.raises(ConfigurationError, match="are one server"):
        parse_nodes("redis+sentinel://s1,s2/a,redis+sentinel://s2,s1/a/1")


@pytest.mark.parametrize(
    ("url", "says"),
    [
        (f"redis+sentinel://:{SECRET}@s1,s2", "ends with the name that its Sentinels have"),
        (f"redis+sentinel://:{SECRET}@s1/g/name", "ends with the name that its Sentinels have"),
        (f"redis+sentinel://s1/g?sentinel_pasword={SECRET}", "has the option sentinel_pasword"),
        (f"redis+sentinel://:{SECRET}@s1,s1:26379/g", "names one Sentinel twice"),
    ],
)
def test_a_group_s_url_that_cannot_be_used_is_refused_without_the_password(
    url: str, says: str
) -> None:
    with pytest.raises(ConfigurationError, match=says) as caught:
        parse_node(url)
    assert SECRET not in str(caught.value)
