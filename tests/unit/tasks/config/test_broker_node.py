"""The broker as the single lock node: exact, or refused with the setting to write."""

from __future__ import annotations

import inspect
import ssl
from typing import Any

import pytest
import redis
from celery import Celery
from kombu import Connection
from kombu.transport import virtual
from kombu.transport.redis import Channel

from celery_redlock.errors import ConfigurationError
from celery_redlock.tasks.config.broker_node import node_from_broker
from celery_redlock.tasks.config.client import client_for
from celery_redlock.tasks.config.settings import read_settings
from celery_redlock.transport.addresses import parse_node


def app_with(broker: Any, **conf: Any) -> Celery:
    app = Celery("nodes", broker=broker, set_as_current=False)
    app.conf.update(conf)
    return app


PROVIDER = "redis.CredentialProvider"
asks = pytest.mark.skipif(
    "credential_provider" not in inspect.signature(Connection).parameters,
    reason="this version of kombu asks no code for user and password",
)


def credentials(*row: Any) -> Any:
    """A row that asks code for user and password."""
    return pytest.param(*row, marks=asks)


#: A broker, its node, and what else the app is configured with.
TRANSLATED = [
    ("redis://", "redis://127.0.0.1:6379/0", {}),
    ("redis://h", "redis://h:6379/0", {}),
    ("redis://h:7/", "redis://h:7/0", {}),
    ("redis://h:7/3", "redis://h:7/3", {}),
    ("redis://:pw@h", "redis://:pw@h:6379/0", {}),
    ("redis://ana:p%40s%2Fs@h", "redis://ana:p%40s%2Fs@h:6379/0", {}),
    ("redis://ana@h", "redis://ana@h:6379/0", {}),
    ("redis://[::1]:7/2", "redis://[::1]:7/2", {}),
    (["redis://h/4"], "redis://h:6379/4", {}),
    ("redis://h", "redis://:pw@h:6379/5", {"broker_password": "pw", "broker_vhost": "5"}),
    ("rediss://h", "rediss://h:6379/0?ssl_cert_reqs=none", {}),
    (
        "rediss://h/1?ssl_cert_reqs=CERT_REQUIRED&ssl_ca_certs=/etc/ca.pem",
        "rediss://h:6379/1?ssl_cert_reqs=required&ssl_ca_certs=%2Fetc%2Fca.pem",
        {},
    ),
    (
        "redis://h",
        "rediss://h:6379/0?ssl_cert_reqs=required&ssl_certfile=%2Fc&ssl_keyfile=%2Fk"
        "&ssl_check_hostname=False",
        {
            "broker_use_ssl": {
                "ssl_cert_reqs": ssl.CERT_REQUIRED,
                "ssl_certfile": "/c",
                "ssl_keyfile": "/k",
                "ssl_check_hostname": False,
            }
        },
    ),
    ("redis+socket:///run/r.sock", "unix:///run/r.sock?db=0", {}),
    ("redis+socket://:pw@/run/r.sock?virtual_host=2", "unix://:pw@/run/r.sock?db=2", {}),
    credentials(
        f"redis://ana:pw@h?credential_provider={PROVIDER}",
        f"redis://h:6379/0?credential_provider={PROVIDER}",
        {},
    ),
    credentials(
        f"redis+socket://:pw@/run/r.sock?credential_provider={PROVIDER}",
        f"unix:///run/r.sock?db=0&credential_provider={PROVIDER}",
        {},
    ),
]


@pytest.mark.parametrize(("broker", "expected", "conf"), TRANSLATED)
def test_a_plain_redis_broker_is_translated(broker: Any, expected: str, conf: Any) -> None:
    assert node_from_broker(app_with(broker, **conf)) == expected


@pytest.mark.parametrize(("broker", "_", "conf"), TRANSLATED)
def test_the_node_is_reached_as_kombu_reaches_the_broker(broker: Any, _: str, conf: Any) -> None:
    app = app_with(broker, **conf)
    url = node_from_broker(app)
    parse_node(url)
    ours = redis.ConnectionPool.from_url(url)
    channel_class = app.connection_for_write().transport_cls and app.connection_for_write()
    theirs = _kombu_parameters(channel_class)
    names = [
        "host", "port", "db", "path", "username", "password",
        "ssl_cert_reqs", "ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_check_hostname",
    ]  # fmt: skip
    mine = {n: v for n, v in ours.connection_kwargs.items() if n in names and v is not None}
    assert mine == {n: theirs[n] for n in names if theirs.get(n) is not None}
    assert ours.connection_class.__mro__[0] in theirs["connection_class"].__mro__


GROUP = {"master_name": "locks"}
#: A broker, its node, what its Sentinels ask for, and what else the app is configured with.
SENTINELS = [
    ("sentinel://s1", "s1:26379/locks/0", {}, {}),
    ("sentinel://s1:7/3", "s1:7/locks/3", {}, {}),
    ("sentinel://s1;sentinel://s2:7;sentinel://[::1]", "s1:26379,s2:7,[::1]:26379/locks/0", {}, {}),
    (["sentinel://s1", "sentinel://s2"], "s1:26379,s2:26379/locks/0", {}, {}),
    (
        "sentinel://ana:p%40s%2Fs@s1/2;sentinel://s2",
        *("ana:p%40s%2Fs@s1:26379,s2:26379/locks/2", {}, {}),
    ),
    ("sentinel://:pw@s1;sentinel://:pw@s2", ":pw@s1:26379,s2:26379/locks/0", {}, {}),
    (
        "sentinel://s1",
        "s1:26379/locks/0?sentinel_username=eve&sentinel_password=s+p",
        {"username": "eve", "password": "s p", "socket_timeout": 3, "ssl": False},
        {},
    ),
    (
        "sentinel://s1",
        "s1:26379/locks/0?sentinel_tls=false&ssl_cert_reqs=none",
        {},
        {"broker_use_ssl": {"ssl_cert_reqs": "none"}},
    ),
    (
        "sentinel://s1",
        "s1:26379/locks/0?ssl_cert_reqs=none",
        {"ssl": True, "ssl_cert_reqs": "none"},
        {"broker_use_ssl": {"ssl_cert_reqs": ssl.CERT_NONE}},
    ),
    (
        "sentinel://s1",
        "s1:26379/locks/0?sentinel_tls=true&ssl_ca_certs=%2Fca",
        {"ssl": True, "ssl_ca_certs": "/ca"},
        {},
    ),
    ("sentinel://s1", "s1:26379/locks/0", {"ssl_ca_certs": "/ca"}, {}),
    credentials(
        f"sentinel://ana:pw@s1?credential_provider={PROVIDER};sentinel://s2",
        f"s1:26379,s2:26379/locks/0?credential_provider={PROVIDER}",
        *({}, {}),
    ),
]
#: What decides whom a connection reaches, and as which user: redis-py's arguments and attributes.
REACHED = {
    **{name: name for name in ("host", "port", "db", "username", "password")},
    **{
        f"ssl_{name}": name
        for name in ("cert_reqs", "ca_certs", "certfile", "keyfile", "check_hostname")
    },
}


def sentinel_app(broker: Any, of_sentinels: Any, conf: Any) -> Celery:
    options = {"sentinel_kwargs": of_sentinels, **GROUP}
    return app_with(broker, broker_transport_options=options, **conf)


@pytest.mark.parametrize(("broker", "expected", "of_sentinels", "conf"), SENTINELS)
def test_a_broker_behind_sentinels_is_translated(
    broker: Any, expected: str, of_sentinels: Any, conf: Any
) -> None:
    scheme = "rediss" if "broker_use_ssl" in conf else "redis"
    node = node_from_broker(sentinel_app(broker, of_sentinels, conf))
    assert node == f"{scheme}+sentinel://{expected}"


@pytest.mark.parametrize(("broker", "_", "of_sentinels", "conf"), SENTINELS)
def test_sentinels_and_master_are_reached_as_kombu_reaches_them(
    broker: Any, _: str, of_sentinels: Any, conf: Any
) -> None:
    app = sentinel_app(broker, of_sentinels, conf)
    found = parse_node(node_from_broker(app))
    connection = app.connection_for_write()
    channel = connection.transport.Channel.__new__(connection.transport.Channel)
    channel.connection, channel.Client = connection.transport, redis.Redis
    channel.master_name, channel.sentinel_kwargs = GROUP["master_name"], of_sentinels
    theirs = channel._sentinel_managed_pool()

    assert found.group == theirs.service_name
    assert [_reached(redis.ConnectionPool.from_url(url)) for url in found.sentinels] == [
        _reached(one.connection_pool) for one in theirs.sentinel_manager.sentinels
    ]
    ours = _reached(redis.ConnectionPool.from_url(found.url))
    place = dict.fromkeys(("host", "port"))  # the Sentinels name it
    assert ours | place == _reached(theirs) | place


def _reached(pool: Any) -> dict[str, Any]:
    """Return whom a pool's connections reach, with redis-py's own defaults."""
    tls = issubclass(pool.connection_class, redis.SSLConnection)
    given = {
        name: pool.connection_kwargs[name]
        for name in REACHED
        if name in pool.connection_kwargs and (tls or not name.startswith("ssl_"))
    }
    one = (redis.SSLConnection if tls else redis.Connection)(**given)
    return {name: getattr(one, attribute, "no TLS") for name, attribute in REACHED.items()}


def _kombu_parameters(connection: Connection) -> dict[str, Any]:
    """What kombu's Redis channel would connect with; nothing is connected."""
    channel_class = connection.transport.Channel
    channel = channel_class.__new__(channel_class)
    channel.connection, channel.Client = connection.transport, redis.Redis
    parameters = channel._connparams()
    if isinstance(parameters.get("ssl_cert_reqs"), ssl.VerifyMode):
        parameters["ssl_cert_reqs"] = parameters["ssl_cert_reqs"].name[5:].lower()
    return parameters


@pytest.mark.parametrize(
    ("options", "nodes", "prefix"),
    [
        ({}, None, "redlock:"),
        (None, None, "redlock:"),
        ({"global_keyprefix": ""}, None, "redlock:"),
        ({"global_keyprefix": "staging:"}, None, "staging:redlock:"),
        ({"global_keyprefix": "staging:"}, ["redis://nodes-of-their-own"], "redlock:"),
    ],
)
def test_lock_keys_begin_with_the_broker_s_global_prefix(
    options: Any, nodes: Any, prefix: str
) -> None:
    app = app_with("redis://h", broker_transport_options=options, redlock_nodes=nodes)
    assert read_settings(app).prefix_on_nodes == prefix


def test_a_global_prefix_that_is_no_string_is_refused_with_the_setting_to_write() -> None:
    app = app_with("redis://h", broker_transport_options={"global_keyprefix": 7})
    with pytest.raises(ConfigurationError, match=r"global_keyprefix .* Set redlock_nodes"):
        client_for(app)


def test_the_transport_options_that_name_other_keys_are_known() -> None:
    """A new one in kombu may be another prefix; those of queues alone do not matter to locks."""
    known = {
        *("sep", "ack_emulation", "unacked_key", "unacked_index_key", "unacked_mutex_key"),
        *("unacked_mutex_expire", "visibility_timeout", "unacked_restore_limit", "fanout_prefix"),
        *("unacked_restore_interval", "unacked_restore_throttle", "fanout_patterns"),
        *("global_keyprefix", "socket_timeout", "socket_connect_timeout", "socket_keepalive"),
        *("socket_keepalive_options", "queue_order_strategy", "max_connections"),
        *("health_check_interval", "retry_on_timeout", "priority_steps", "client_name"),
    }
    generic = set(virtual.Channel.from_transport_options)
    assert set(Channel.from_transport_options) - generic <= known
