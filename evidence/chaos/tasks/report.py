"""The section of the page about the task layer."""

from __future__ import annotations

from collections import Counter
from html import escape

from evidence.chaos.tasks.checks import RULES
from evidence.chaos.tasks.kinds import KINDS
from evidence.chaos.tasks.outcomes import DONE, KILLED, REFUSED, REPLACED, REVOKED, SKIPPED
from evidence.chaos.tasks.run import TaskOutcome
from evidence.chaos.tasks.schedule import POOLS, PUBLISHERS

_OUTCOMES = (DONE, SKIPPED, "duplicate", REFUSED, REPLACED, REVOKED, KILLED)
_SHOWN = 20
_LINES_SHOWN = 40


def render_section(outcome: TaskOutcome) -> str:
    """Return the section, from its heading to its last violation."""
    verdict = outcome.verdict
    badge = (
        f'<span class="badge broken">{len(verdict.violations)} violations</span>'
        if verdict.violations
        else '<span class="badge">every rule held</span>'
    )
    workers = ", ".join(f"{count} {pool}" for pool, count in Counter(POOLS).items())
    return f"""<h1>The task layer {badge}</h1>
<p class="soft">Real Celery workers ({workers}) and {PUBLISHERS} publisher processes, a broker that
stays healthy, and five lock nodes of which at most two are faulty at any time;
{outcome.seconds:.0f} seconds of storms and calm, then {outcome.drained:.0f} seconds until the
broker was empty; seed {outcome.seed}.</p>
<div class="cards">{_cards(outcome)}</div>
<div class="two"><div><h2>Calls by kind and outcome</h2>{_calls(outcome)}</div>
<div><h2>Faults</h2>{_counts(outcome.faults)}</div></div>
<div class="two"><div><h2>Rules</h2>{_rules(outcome)}</div>
<div><h2>How bodies ended</h2>{_counts(verdict.endings)}</div></div>
{_violations(outcome)}"""


def _cards(outcome: TaskOutcome) -> str:
    verdict = outcome.verdict
    pairs = verdict.pairs
    twice = sum(pairs.twice.values())
    cards = [
        ("", len(outcome.history.calls), "calls of unique tasks"),
        ("", len(outcome.history.bodies), "bodies"),
        ("", sum(outcome.faults.values()), f"faults of {len(outcome.faults)} kinds"),
        (
            "bad" if twice else "good",
            twice,
            f"second bodies of {pairs.judged} pairs of which one call waited, in calm",
        ),
        ("", verdict.beside, "bodies that outlived a lost lease beside the next holder"),
        (
            "",
            verdict.woken,
            f"of {verdict.requeued} requeued messages were woken by a release",
        ),
        ("", pairs.revoked, "duplicates of a task that was revoked (not judged)"),
    ]
    return "".join(
        f'<div class="card {kind}"><b>{value}</b><span>{escape(text)}</span></div>'
        for kind, value, text in cards
    )


def _calls(outcome: TaskOutcome) -> str:
    counts = outcome.verdict.outcomes
    others = sorted({each for count in counts.values() for each in count} - set(_OUTCOMES))
    columns = (*_OUTCOMES, *others)
    head = "".join(f"<th>{escape(each)}</th>" for each in columns)
    rows = "".join(
        f"<tr><td>{escape(name)}<br><span class='soft'>{escape(_about(name))}</span></td>"
        + "".join(f'<td class="number">{count[each] or ""}</td>' for each in columns)
        + "</tr>"
        for name, count in counts.items()
    )
    return f"<table><tr><th>kind</th>{head}</tr>{rows}</table>"


def _about(name: str) -> str:
    kind = KINDS[name]
    parts = [kind.mode, kind.policy, "acks late" if kind.acks_late else ""]
    return ", ".join(part for part in parts if part)


def _counts(counts: dict[str, int]) -> str:
    rows = "".join(
        f'<tr><td>{escape(name)}</td><td class="number">{count}</td></tr>'
        for name, count in sorted(counts.items())
    )
    return f"<table>{rows}</table>"


def _rules(outcome: TaskOutcome) -> str:
    broken = outcome.verdict.broken
    rows = "".join(
        f"<tr><td>{escape(rule)}</td><td>"
        + (
            f'<span class="no">broken {broken[rule]} times</span>'
            if broken[rule]
            else '<span class="ok">held</span>'
        )
        + "</td></tr>"
        for rule in (*RULES, *sorted(set(broken) - set(RULES)))
    )
    return f"<table>{rows}</table>"


def _violations(outcome: TaskOutcome) -> str:
    if not outcome.verdict.violations:
        return ""
    parts = []
    for violation in outcome.verdict.violations[:_SHOWN]:
        lines = "\n".join(str(dict(line)) for line in violation.lines[:_LINES_SHOWN])
        parts.append(
            f"<p><b>{escape(violation.rule)}</b>: {escape(violation.what)}</p>"
            f"<pre>{escape(lines)}</pre>"
        )
    return "<h2>Violations of the task layer</h2>" + "".join(parts)
