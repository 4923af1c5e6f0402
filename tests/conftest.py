"""What tests have counted beside passing and failing, at the end of a run."""

from __future__ import annotations

import asyncio
import gc
import inspect
import re
import signal
from collections import Counter, defaultdict
from typing import Any

import pytest

from tests.support.waiting import TIMEOUT

#: Of each property, under `--hypothesis-profile brief`; `make test-full` tries a hundred.
BRIEF_EXAMPLES = 20


def pytest_configure(config: pytest.Config) -> None:
    """Make the tests independent of how busy the machine is, and of who has started them."""
    _heed_interrupts()
    _be_patient(config)
    _end_what_hangs(config)
    # All that is made until the tests begin stays; to look for garbage in it costs seconds.
    gc.disable()


def pytest_collection_finish() -> None:
    """Look for garbage again, and only in what the tests make."""
    _known_handlers.update(_handlers())
    gc.freeze()
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `--dist loadfile`, give to one process also what shares workers across files."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class SharedWorkers(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            shared = re.match(r"tests/acceptance/.+/", file)
            return shared[0] if shared else file

    # In the order of the files: what waits comes first, and units fill the gaps at the end.
    config.option.loadscopereorder = False
    return SharedWorkers(config, log)


def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine in an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


#: Handlers of signals that were connected when test modules were imported.
_known_handlers: set[str] = set()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Let no handler outlive its module: it would be called for the tasks of all later tests."""
    if nextitem is None or nextitem.path != item.path:
        left = _handlers() - _known_handlers
        _known_handlers.update(left)
        assert not left, f"{item.path.name} leaves handlers of signals: {', '.join(sorted(left))}"


def _handlers() -> set[str]:
    """Return the handlers of tests that stay until they are disconnected, each with its signal."""
    from celery import signals
    from celery.utils.dispatch import Signal

    from celery_redlock import signals as redlock_signals

    return {
        f"{name} calls {handler.__qualname__}"
        for module in (signals, redlock_signals)
        for name, signal in vars(module).items()
        if isinstance(signal, Signal)
        for _, handler in signal.receivers or ()
        if getattr(handler, "__module__", "").startswith("tests.")
    }


def _heed_interrupts() -> None:
    """
    Undo what a shell does to what it starts in the background: it ignores Ctrl-C.

    What tests start would inherit that, and they interrupt some of it.
    """
    usual: dict[str, Any] = {"SIGINT": signal.default_int_handler, "SIGQUIT": signal.SIG_DFL}
    for number in signal.valid_signals():
        name = getattr(number, "name", "")
        if name in usual and signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, usual[name])


def _be_patient(config: pytest.Config) -> None:
    """How long a property takes is no test's business."""
    if not config.pluginmanager.hasplugin("hypothesispytest"):
        return  # tests in containers do without
    from hypothesis import HealthCheck, settings

    patient = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
    settings.register_profile("patient", **patient)
    settings.register_profile("brief", max_examples=BRIEF_EXAMPLES, **patient)
    settings.load_profile(config.getoption("hypothesis_profile") or "patient")


def _end_what_hangs(config: pytest.Config) -> None:
    """A test has four times the longest wait, unless it is marked with another number."""
    if config.pluginmanager.hasplugin("timeout") and config.getoption("timeout") is None:
        config.option.timeout = 4 * TIMEOUT


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """
    Print what tests recorded: sums of their `counts`, and their `remarks`.

    A test says `record_property("counts", {"things": {"done": 3, "left out": 1}})`; properties
    travel from the processes that run the tests to the one that prints this.
    """
    totals: defaultdict[str, Counter[str]] = defaultdict(Counter)
    remarks = []
    for report in _finished(terminalreporter):
        for name, value in report.user_properties:
            if name == "remarks":
                remarks += value
            for things, counts in value.items() if name == "counts" else ():
                totals[things].update(counts)
    if not totals:
        return
    terminalreporter.section("counted")
    for things, counts in totals.items():
        told = ", ".join(f"{count} {what}" for what, count in counts.most_common())
        terminalreporter.line(f"{things}: {told}")
    for remark in remarks:
        terminalreporter.line(remark)


def _finished(terminalreporter: Any) -> list[pytest.TestReport]:
    return [
        report
        for reports in terminalreporter.stats.values()
        for report in reports
        if isinstance(report, pytest.TestReport) and report.when == "call"
    ]
