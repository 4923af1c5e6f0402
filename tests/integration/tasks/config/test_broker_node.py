"""The broker as the single lock node: exact, or refused with the setting to write."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery
from kombu.transport.memory import Transport

from celery_redlock.errors import ConfigurationError
from celery_redlock.tasks.config.broker_node import node_from_broker


def node(broker: Any, **conf: Any) -> str:
    app = Celery("nodes", broker=broker, set_as_current=False)
    app.conf.update(conf)
    return node_from_broker(app)


def sentinels(kwargs: Any = None, *, master_name: Any = "locks") -> dict[str, Any]:
    """Return the settings of a broker behind Sentinels."""
    return {"broker_transport_options": {"master_name": master_name, "sentinel_kwargs": kwargs}}


@pytest.mark.parametrize(
    ("broker", "conf", "reason"),
    [
        ("amqp://u:hunter2@h//", {}, "(amqp) is not a plain Redis server"),
        ("sentinel://:hunter2@h:26379", {}, "no master_name"),
        ("sentinel://:hunter2@h", sentinels(None, master_name=""), "no master_name"),
        ("sentinel://:hunter2@h", sentinels(None, master_name="a/b"), "no master_name"),
        ("sentinel://:hunter2@a;sentinel://:other@b", sentinels(), "differ in user, password"),
        ("sentinel://a;sentinel://ana:hunter2@b", sentinels(), "differ in user, password"),
        ("sentinel://:hunter2@a/1;sentinel://b/2", sentinels(), "database or credential_provider"),
        (
            "sentinel://a;sentinel://b?credential_provider=os.b",
            sentinels(),
            "or credential_provider",
        ),
        ("sentinel://:hunter2@a;redis://b", sentinels(), "not all sentinel://"),
        ("sentinel://:hunter2@a/name", sentinels(), "does not end in a database number"),
        ("sentinel://a", sentinels("hunter2"), "sentinel_kwargs of broker_transport_options is"),
        ("sentinel://a", sentinels({"password": lambda: "hunter2"}), "is not a string"),
        ("sentinel://a", sentinels({"credential_provider": object()}), "has credential_provider"),
        ("sentinel://a", sentinels({"ssl": True, "ssl_ciphers": "HIGH"}), "has ssl_ciphers"),
        (
            "sentinel://a",
            {**sentinels({"ssl": True}), "broker_use_ssl": {"ssl_ca_certs": "/ca"}},
            "TLS options that differ from broker_use_ssl",
        ),
        ("filesystem://", {}, "(filesystem) is not a plain Redis server"),
        ("memory://", {"broker_transport": Transport}, "(kombu.transport.memory.Transport) is not"),
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
            "socket URL has parts that a node URL cannot express",
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
