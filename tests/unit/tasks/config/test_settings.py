"""Reading `redlock_*` settings from real apps, in every way Celery takes them."""

from __future__ import annotations

import re
import signal
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery, current_app

from celery_redlock.errors import ConfigurationError
from celery_redlock.tasks.config.settings import read_settings

NODES = ["redis://:hunter2@a/0", "redis://:hunter2@b/0", "redis://:hunter2@c/0"]


def app_with(**conf: Any) -> Celery:
    app = Celery("settings", broker="redis://broker", set_as_current=False)
    app.conf.update(conf)
    return app


def test_without_settings_there_are_the_documented_defaults() -> None:
    settings = read_settings(app_with())
    assert settings.max_ttl == 60.0
    assert settings.key_prefix == "redlock:"
    assert settings.drift_factor == 0.01
    assert settings.node_timeout == 0.2
    assert settings.guard is None
    assert settings.lost_signal == signal.SIGURG
    assert settings.tasks == settings.defaults == {}
    assert settings.nodes_from_broker
    assert settings.nodes == ("redis://broker:6379/0",)


GIVEN = {"redlock_nodes": NODES, "redlock_ttl": 20}


def updated() -> Celery:
    return app_with(**GIVEN)


def preconfigured() -> Celery:
    app = Celery("settings", set_as_current=False)
    for name, value in GIVEN.items():
        app.conf[name] = value
    return app


def from_object(source: Any, **options: str) -> Celery:
    app = Celery("settings", set_as_current=False)
    app.config_from_object(source, **options)
    return app


def django_style(**more: Any) -> Celery:
    given = {f"CELERY_{name.upper()}": value for name, value in GIVEN.items()}
    return from_object(SimpleNamespace(DEBUG=True, **given, **more), namespace="CELERY")


@pytest.mark.parametrize(
    "app",
    [
        updated(),
        preconfigured(),
        from_object(SimpleNamespace(**GIVEN)),
        from_object(type("Config", (), GIVEN)),
        from_object({f"celery_{name}": GIVEN[name] for name in GIVEN}, namespace="celery"),
        django_style(),
    ],
    ids=["update", "before others", "module", "class", "lower-case namespace", "Django"],
)
def test_settings_are_found_however_they_are_given(app: Celery) -> None:
    settings = read_settings(app)
    assert settings.nodes == tuple(NODES)
    assert settings.defaults == {"ttl": 20.0}


def test_a_later_change_counts_beside_a_namespace() -> None:
    app = django_style()
    app.conf.update(redlock_wait=5)
    assert read_settings(app).defaults == {"ttl": 20.0, "wait": 5.0}


def test_settings_of_other_packages_are_left_alone_beside_a_namespace() -> None:
    assert read_settings(django_style(REDLOCK_THEIRS=1)).nodes == tuple(NODES)


def test_a_setting_outside_its_namespace_is_refused_with_its_right_spelling() -> None:
    with pytest.raises(ConfigurationError, match="write it as CELERY_REDLOCK_MAX_TTL"):
        read_settings(django_style(REDLOCK_MAX_TTL=5))


def test_an_upper_case_setting_without_namespace_is_refused_with_its_right_spelling() -> None:
    with pytest.raises(
        ConfigurationError, match="setting REDLOCK_NODES: write it as redlock_nodes"
    ):
        read_settings(app_with(REDLOCK_NODES=NODES))


@pytest.mark.parametrize(
    ("name", "given", "found"),
    [
        ("nodes", "redis://a , redis://b,redis://c", ("redis://a", "redis://b", "redis://c")),
        ("max_ttl", timedelta(minutes=2), 120.0),
        ("key_prefix", "", ""),
        ("drift_factor", 0.1, 0.1),
        ("node_timeout", 0.5, 0.5),
        ("guard", False, False),
        ("dedupe", True, True),
        ("lost_signal", "SIGUSR2", signal.SIGUSR2),
        ("lost_signal", int(signal.SIGUSR2), signal.SIGUSR2),
        ("tasks", {"b*": {"lock_ttl": 50, "lock_key": True}}, {"b*": {"ttl": 50.0, "key": True}}),
    ],
)
def test_a_setting_reaches_its_place(name: str, given: Any, found: Any) -> None:
    app = app_with(**{"redlock_nodes": NODES, f"redlock_{name}": given})
    assert getattr(read_settings(app), name) == found


def test_options_for_all_tasks_are_their_defaults() -> None:
    app = app_with(redlock_wait=timedelta(seconds=3), redlock_on_conflict="skip")
    assert read_settings(app).defaults == {"wait": 3.0, "on_conflict": "skip"}


def test_none_means_unset() -> None:
    settings = read_settings(app_with(redlock_nodes=None, redlock_ttl=None, redlock_guard=None))
    assert settings.nodes_from_broker
    assert settings.defaults == {}


@pytest.mark.parametrize(
    ("conf", "message"),
    [
        ({"redlock_max_tll": 3}, "redlock_max_tll is unknown; did you mean redlock_max_ttl?"),
        ({"redlock_xyz": None}, "redlock_xyz is unknown; the names are: redlock_"),
        ({"redlock_nodes": 7}, "redlock_nodes is not a list of node URLs"),
        ({"redlock_nodes": [7]}, "redlock_nodes is not a list of node URLs"),
        ({"redlock_nodes": ""}, "redlock_nodes is empty or has an empty entry"),
        ({"redlock_nodes": []}, "redlock_nodes is empty or has an empty entry"),
        ({"redlock_nodes": "redis://a,,redis://b"}, "redlock_nodes is empty or has an empty entry"),
        ({"redlock_max_ttl": 0.1}, "redlock_max_ttl=0.1 is out of range; give at least 0.2"),
        ({"redlock_ttl": 61}, "redlock_ttl=61 is above redlock_max_ttl=60"),
        ({"redlock_on_conflict": "hope"}, "redlock_on_conflict='hope' is not a choice here"),
        ({"redlock_mode": "until_done"}, "redlock_mode='until_done' is not a choice here"),
        ({"redlock_queue_ttl": 0.5}, "redlock_queue_ttl=0.5 is out of range; give at least 1"),
        ({"redlock_dedupe": "yes"}, "redlock_dedupe='yes' is not a choice; give True or False"),
        ({"redlock_key_prefix": 7}, "redlock_key_prefix=7 is not a string"),
        ({"redlock_key_prefix": "redlock-meta:"}, "is reserved"),
        ({"redlock_drift_factor": 0.5}, "setting redlock_drift_factor=0.5 is not a number from 0"),
        ({"redlock_drift_factor": "1%"}, "setting redlock_drift_factor='1%' is not a number"),
        ({"redlock_node_timeout": 0}, "redlock_node_timeout=0 is out of range"),
        (
            {"redlock_node_timeout": 6, "redlock_ttl": 5},
            "redlock_node_timeout=6 is above redlock_ttl=5",
        ),
        ({"redlock_node_timeout": 40}, "redlock_node_timeout=40 is above redlock_ttl=30"),
        ({"redlock_key_prefix": ""}, "redlock_key_prefix='' needs separate lock nodes"),
        ({"redlock_on_unusable_node": "hope"}, "redlock_on_unusable_node='hope' is not a choice"),
        ({"redlock_guard": "on"}, "redlock_guard='on' is not a choice"),
        (
            {"redlock_lost_signal": "SIGHUPP"},
            "'SIGHUPP' is not a signal on this system",
        ),
        ({"redlock_lost_signal": 4000}, "redlock_lost_signal=4000 is not a signal on this system"),
        ({"redlock_lost_signal": "SIGUSR1"}, "is taken by Celery or the system"),
        ({"redlock_tasks": ["bank.*"]}, "redlock_tasks must be a mapping"),
        ({"redlock_tasks": {"bank.*": 3}}, "redlock_tasks['bank.*'] is 3 and names no options"),
        ({"redlock_tasks": {"bank.*": {}}}, "redlock_tasks['bank.*'] is empty"),
        ({"redlock_tasks": {"b": {"lock_kye": 1}}}, "lock_kye is unknown; did you mean lock_key?"),
        (
            {"redlock_tasks": {"b": {"ttl": 1}}},
            "redlock_tasks['b']: ttl is unknown; did you mean lock_ttl?",
        ),
        ({"redlock_tasks": {"b": {"lock_ttl": "x"}}}, "redlock_tasks['b']['lock_ttl']='x' is not"),
    ],
)
def test_a_setting_that_cannot_work_is_refused(conf: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        read_settings(app_with(**conf))


def test_a_refused_list_of_nodes_shows_no_password() -> None:
    with pytest.raises(ConfigurationError) as caught:
        read_settings(app_with(redlock_nodes=["redis://:hunter2@a", None]))
    assert "hunter2" not in str(caught.value)


def test_settings_print_no_password() -> None:
    assert "hunter2" not in repr(read_settings(updated()))


def test_settings_are_read_again_only_when_they_have_changed() -> None:
    app = updated()
    first = read_settings(app)
    assert read_settings(app) is first
    app.conf.redlock_ttl = 7
    assert read_settings(app).defaults == {"ttl": 7.0}


def test_the_proxy_of_the_current_app_is_the_app() -> None:
    app = updated()
    app.set_current()
    try:
        assert read_settings(current_app) is read_settings(app)
    finally:
        Celery("settings").set_current()


def test_an_app_that_cannot_lock_is_told_so_only_when_nodes_are_needed() -> None:
    app = Celery("settings", broker="amqp://", set_as_current=False)
    settings = read_settings(app)
    with pytest.raises(ConfigurationError, match="Set redlock_nodes"):
        _ = settings.nodes
