"""The broker as the single lock node: exact, or refused with the setting to write."""

from __future__ import annotations

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
from celery_redlock.tasks.config.client import redlock_for
from celery_redlock.tasks.config.settings import read_settings
from celery_redlock.transport.addresses import parse_node


def node(broker: Any, **conf: Any) -> str:
    app = Celery("nodes", broker=broker, set_as_current=False)
    app.conf.update(conf)
    return node_from_broker(app)


TRANSLATED = [
    ("redis://", {}, "redis://127.0.0.1:6379/0"),
    ("redis://h", {}, "redis://h:6379/0"),
    ("redis://h:7/", {}, "redis://h:7/0"),
    ("redis://h:7/3", {}, "redis://h:7/3"),
    ("redis://:pw@h", {}, "redis://:pw@h:6379/0"),
    ("redis://ana:p%40s%2Fs@h", {}, "redis://ana:p%40s%2Fs@h:6379/0"),
    ("redis://ana@h", {}, "redis://ana@h:6379/0"),
    ("redis://[::1]:7/2", {}, "redis://[::1]:7/2"),
    (["redis://h/4"], {}, "redis://h:6379/4"),
    ("redis://h", {"broker_password": "pw", "broker_vhost": "5"}, "redis://:pw@h:6379/5"),
    ("rediss://h", {}, "rediss://h:6379/0?ssl_cert_reqs=none"),
    (
        "rediss://h/1?ssl_cert_reqs=CERT_REQUIRED&ssl_ca_certs=/etc/ca.pem",
        {},
        "rediss://h:6379/1?ssl_cert_reqs=required&ssl_ca_certs=%2Fetc%2Fca.pem",
    ),
    (
        "redis://h",
        {
            "broker_use_ssl": {
                "ssl_cert_reqs": ssl.CERT_REQUIRED,
                "ssl_certfile": "/c",
                "ssl_keyfile": "/k",
                "ssl_check_hostname": False,
            }
        },
        "rediss://h:6379/0?ssl_cert_reqs=required&ssl_certfile=%2Fc&ssl_keyfile=%2Fk"
        "&ssl_check_hostname=False",
    ),
    ("redis+socket:///run/r.sock", {}, "unix:///run/r.sock?db=0"),
    ("redis+socket://:pw@/run/r.sock?virtual_host=2", {}, "unix://:pw@/run/r.sock?db=2"),
]


@pytest.mark.parametrize(("broker", "conf", "expected"), TRANSLATED)
def test_a_plain_redis_broker_is_translated(broker: Any, conf: Any, expected: str) -> None:
    assert node(broker, **conf) == expected


@pytest.mark.parametrize(("broker", "conf"), [(broker, conf) for broker, conf, _ in TRANSLATED])
def test_the_node_is_reached_as_kombu_reaches_the_broker(broker: Any, conf: Any) -> None:
    app = Celery("nodes", broker=broker, set_as_current=False)
    app.conf.update(conf)
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


def _kombu_parameters(connection: Connection) -> dict[str, Any]:
    """What kombu's Redis channel would connect with; nothing is connected."""
    channel_class = connection.transport.Channel
    channel = channel_class.__new__(channel_class)
    channel.connection = connection.transport
    parameters = channel._connparams()
    if isinstance(parameters.get("ssl_cert_reqs"), ssl.VerifyMode):
        parameters["ssl_cert_reqs"] = parameters["ssl_cert_reqs"].name[5:].lower()
    return parameters


@pytest.mark.parametrize(
    ("broker", "conf", "reason"),
    [
        ("amqp://u:hunter2@h//", {}, "(amqp) is not a plain Redis server"),
        ("sentinel://:hunter2@h:26379", {}, "(sentinel) is not a plain Redis server"),
        ("filesystem://", {}, "(filesystem) is not a plain Redis server"),
        ("sqs://u:hunter2@", {}, "Set redlock_nodes"),
        ("memory://", {}, "redlock_nodes = ['memory://'] needs no server"),
        ("redis://:hunter2@a;redis://:hunter2@b", {}, "several brokers"),
        (["redis://:hunter2@a", "redis://:hunter2@b"], {}, "several brokers"),
        ("redis://:hunter2@h/name", {}, "does not end in a database number"),
        ("redis://:hunter2@h:port/0", {}, "cannot be read"),
        ("bogus://:hunter2@h", {}, "Set redlock_nodes"),
        ("redis://:hunter2@h", {"broker_use_ssl": True}, "broker_use_ssl is not a dict"),
        (
            "redis://:hunter2@h",
            {"broker_use_ssl": {"ssl_ciphers": "HIGH"}},
            "ssl_ciphers, which a node URL cannot express",
        ),
        (
            "redis+socket://:hunter2@/run/r.sock?virtual_host=2&health_check_interval=3",
            {},
            "socket URL has parts that a lock node cannot take over",
        ),
        (
            "redis://:hunter2@a",
            {"broker_read_url": "redis://:hunter2@b"},
            "different URLs for reading and writing",
        ),
    ],
)
def test_any_other_broker_is_refused_with_the_setting_to_write(
    broker: Any, conf: Any, reason: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        node(broker, **conf)
    assert reason in str(caught.value)
    assert "Set redlock_nodes = ['redis://" in str(caught.value)
    assert "hunter2" not in str(caught.value)
    assert caught.value.__context__ is None or caught.value.__suppress_context__


@pytest.mark.parametrize(
    ("options", "prefix"),
    [
        ({}, "redlock:"),
        (None, "redlock:"),
        ({"global_keyprefix": ""}, "redlock:"),
        ({"global_keyprefix": "staging:"}, "staging:redlock:"),
    ],
)
def test_lock_keys_begin_with_the_broker_s_global_prefix(options: Any, prefix: str) -> None:
    app = Celery("nodes", broker="redis://h", set_as_current=False)
    app.conf.broker_transport_options = options
    assert read_settings(app).prefix_on_nodes == prefix


def test_nodes_of_their_own_have_no_prefix_of_the_broker() -> None:
    app = Celery("nodes", broker="redis://h", set_as_current=False)
    app.conf.update(
        redlock_nodes=["redis://lock"], broker_transport_options={"global_keyprefix": "staging:"}
    )
    assert read_settings(app).prefix_on_nodes == "redlock:"


def test_a_global_prefix_that_is_no_string_is_refused_with_the_setting_to_write() -> None:
    app = Celery("nodes", broker="redis://h", set_as_current=False)
    app.conf.broker_transport_options = {"global_keyprefix": 7}
    with pytest.raises(ConfigurationError, match=r"global_keyprefix .* Set redlock_nodes"):
        redlock_for(app)


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
