"""The correction of this machine's clock is read from the kernel."""

from __future__ import annotations

import ctypes
import sys
from typing import Any

import pytest

from celery_redlock.admin.node_report import clock_correction


class Kernel:
    """A C library whose clock is corrected."""

    def __init__(self, *, frequency: int = 0, tick: int = 10_000, answer: int = 0) -> None:
        self._words = {2: frequency, 11: tick}
        self._answer = answer

    def __call__(self, _: None) -> Any:
        return self

    def adjtimex(self, words: Any) -> int:
        for place, value in self._words.items():
            words[place] = value
        return self._answer


@pytest.mark.parametrize(
    ("kernel", "correction"),
    [
        (Kernel(), 0.0),
        (Kernel(frequency=500 * 65536), 500e-6),
        (Kernel(frequency=-65536, answer=5), -1e-6),
        (Kernel(tick=10_833), 0.0833),
        (Kernel(tick=10_833, answer=-1), None),
    ],
)
def test_frequency_and_tick_make_the_rate(
    kernel: Kernel, correction: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(ctypes, "CDLL", kernel)

    assert clock_correction() == (correction and pytest.approx(correction))


def test_another_system_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")

    assert clock_correction() is None


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has adjtimex")
def test_this_machines_clock_is_corrected_by_a_tenth_at_most() -> None:
    correction = clock_correction()

    assert correction is None or abs(correction) <= 0.11
