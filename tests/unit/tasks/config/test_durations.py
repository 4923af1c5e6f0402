"""Durations of options and settings that cannot work: one true sentence each."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import pytest
from celery import Celery

from celery_redlock.errors import ConfigurationError
from celery_redlock.tasks.config.options import OPTIONS, checked
from celery_redlock.tasks.config.settings import read_settings
from tests.unit.core.test_durations import IDS, NO_DURATIONS

DURATIONS = (
    *("ttl", "queue_ttl", "window", "dedupe_window", "wait", "give_up_after"),
    *("max_hold", "at_least_for", "starting_deadline"),
)
SETTINGS = ("max_ttl", "node_timeout", "beat_ttl", "beat_renew_deadline", "beat_retry")
wrong = pytest.mark.parametrize("value", [*NO_DURATIONS, math.inf], ids=[*IDS, "inf"])


APP = Celery("durations", broker="memory://", set_as_current=False)


def settings_with(name: str, value: Any) -> Any:
    """Read the settings of an app that has this one, for as long as it takes to read them."""
    APP.conf[f"redlock_{name}"] = value
    try:
        return read_settings(APP)
    finally:
        APP.conf[f"redlock_{name}"] = None


@wrong
@pytest.mark.parametrize("name", DURATIONS)
def test_an_option_refuses_it_by_name(name: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"^lock_{name}=") as caught:
        checked(OPTIONS[name], value, f"lock_{name}")
    text = str(caught.value)
    assert "is not a duration; give seconds" in text or "is out of range; give at " in text
    assert len(text) < 400


@wrong
@pytest.mark.parametrize("name", [*DURATIONS, *SETTINGS])
def test_a_setting_refuses_it_by_name(name: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"setting redlock_{name}=") as caught:
        settings_with(name, value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("name", [*DURATIONS, *SETTINGS])
def test_a_setting_takes_a_timedelta(name: str) -> None:
    settings = settings_with(name, timedelta(seconds=5))
    found = settings.defaults[name] if name in DURATIONS else getattr(settings, name)
    assert found == 5
