"""One page of HTML about a run, with everything in it."""

from __future__ import annotations

from html import escape

from evidence.chaos.plot import Plot
from evidence.chaos.run import Outcome
from evidence.chaos.tasks.report import render_section
from evidence.chaos.tasks.run import TaskOutcome

_SECONDS_CLOSE = 5.0

_STYLE = """
:root { color-scheme: light dark; --back: #fbfbf9; --card: #fff; --ink: #1f2328; --soft: #656d76;
  --line: #d9dce0; --good: #1a7f37; --bad: #cf222e; --hatch: #1f2328; --memory: #b35900;
  --network: #5b5fc7; --process: #8250a8; --clock: #0e7c86; }
@media (prefers-color-scheme: dark) { :root { --back: #0f1216; --card: #171b21; --ink: #e6e8eb;
  --soft: #98a1ab; --line: #2d333b; --good: #4ac26b; --bad: #ff6a69; --hatch: #e6e8eb;
  --memory: #e0913a; --network: #8f93f0; --process: #b78be0; --clock: #3fb6c0; } }
body { background: var(--back); color: var(--ink); margin: 0 auto; max-width: 1400px;
  padding: 24px 20px 40px; font: 15px/1.5 system-ui, sans-serif; box-sizing: border-box; }
h1 { font-size: 26px; margin: 0 0 4px; } h2 { font-size: 17px; margin: 30px 0 6px; }
p { margin: 4px 0; max-width: 75em; } .soft { color: var(--soft); }
.badge { display: inline-block; padding: 2px 12px; border-radius: 99px; color: #fff;
  font-size: 14px; vertical-align: 4px; margin-left: 10px; background: #1a7f37; }
.badge.broken { background: #cf222e; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 10px;
  margin: 16px 0; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 8px;
  padding: 10px 14px; }
.card b { display: block; font-size: 25px; line-height: 1.2; font-variant-numeric: tabular-nums; }
.card.good b { color: var(--good); } .card.bad b { color: var(--bad); }
.card span { color: var(--soft); font-size: 13px; line-height: 1.3; display: block; }
.picture { background: var(--card); border: 1px solid var(--line); border-radius: 8px;
  padding: 6px 10px; }
svg { display: block; width: 100%; height: auto; font-family: inherit; }
table { border-collapse: collapse; background: var(--card); width: 100%; }
td, th { border: 1px solid var(--line); padding: 5px 10px; text-align: left; font-size: 14px; }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
.two { display: grid; grid-template-columns: 2fr 1fr; gap: 24px; align-items: start; }
.ok { color: var(--good); font-weight: 600; } .no { color: var(--bad); font-weight: 600; }
.lane, .grid { stroke: var(--line); fill: none; } .grid { stroke-dasharray: 2 4; }
.label { fill: var(--ink); font-size: 12px; text-anchor: end; }
.title { fill: var(--soft); font-size: 12px; font-weight: 600; }
.time { fill: var(--soft); font-size: 11px; text-anchor: middle; }
.inside { fill: #fff; font-size: 10px; pointer-events: none; }
.mark { font-size: 12px; text-anchor: middle; font-weight: 700; }
.kill { fill: var(--bad); } .good { fill: var(--good); } .lost { fill: #d4a017; }
.frozen { fill: url(#hatch); } .overlap { fill: var(--bad); }
.bars { stroke-width: 14; fill: none; }
.memory { fill: var(--memory); } .network { fill: var(--network); }
.process { fill: var(--process); } .clock { fill: var(--clock); } .pale { opacity: .3; }
.accepted { stroke: var(--good); stroke-width: .8; fill: none; }
.refused { stroke: var(--bad); fill: var(--bad); stroke-width: 1.5; }
.legend i { display: inline-block; width: 11px; height: 11px; border-radius: 2px;
  margin: 0 5px 0 14px; }
.legend i:first-child { margin-left: 0; }
pre { background: var(--card); border: 1px solid var(--line); padding: 10px; overflow: auto;
  font-size: 12px; }
"""
#: One for each worker.
_COLOURS = "#4e79a7", "#e08a2c", "#4f9a48", "#a56a9c", "#c9a227", "#4aa5a0", "#8d6a55", "#d9779a"
_HATCH = """
<svg width="0" height="0" style="position:absolute"><defs><pattern id="hatch" width="5" height="5"
 patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><rect width="2" height="5"
 style="fill:var(--hatch)" opacity=".75"/></pattern></defs></svg>
"""


def render_page(outcome: Outcome | None, tasks: TaskOutcome | None = None) -> str:
    """Return the page about a run of the lock layer, of the task layer, or both."""
    sections = [] if outcome is None else [_section(outcome)]
    sections += [] if tasks is None else [render_section(tasks)]
    colours = "".join(
        f".w{slot} {{ fill: {colour} }} .s{slot} {{ stroke: {colour} }}"
        for slot, colour in enumerate(_COLOURS)
    )
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width"><title>celery-redlock: chaos</title>
<style>{_STYLE}{colours}</style></head><body>{_HATCH}
{"".join(sections)}</body></html>
"""


def _section(outcome: Outcome) -> str:
    verdict = outcome.verdict
    kind = "outside" if outcome.outside else "within"
    badge = (
        f'<span class="badge broken">{len(verdict.violations)} violations</span>'
        if verdict.violations
        else '<span class="badge">every rule held</span>'
    )
    start, end = _most_telling(outcome)
    return f"""<h1>Chaos {kind} the assumptions {badge}</h1>
<p class="soft">Five real servers, eight real worker processes, {outcome.seconds:.0f} seconds,
seed {outcome.seed}. {_about(outcome)}</p>
<div class="cards">{_cards(outcome)}</div>
<h2>The whole run</h2>
<div class="picture">{_whole(outcome)}</div>
<p class="legend soft">{_legend()}</p>
<h2>Closer: {end - start:.0f} seconds around {_what_is_told(outcome)}</h2>
<p class="soft">Each bar is a grant: the worker, and the last digits of its token (seconds).
▾ a write, <span class="no">✕</span> a write that the guard refused,
<span class="no">▲</span> a write over something unread, ◆ a loss that was reported.</p>
<div class="picture">{Plot(outcome, start, end, close=True).render()}</div>
<div class="two"><div><h2>Rules</h2>{_rules(outcome)}</div>
<div><h2>Faults</h2>{_faults(outcome)}</div></div>
{_violations(outcome)}
"""


def _about(outcome: Outcome) -> str:
    if outcome.outside:
        return (
            "Majorities of the nodes lose their memory with the restart guard off, and their "
            "clocks leap and race, so that leases end early. Two holders at once are expected "
            "here: they show that the checks see, and that the guarded resource bears it."
        )
    if not outcome.guard:
        return (
            "The restart guard is switched off, and nothing else is wrong: at most two nodes are "
            "faulty at any time. Two holders at once are expected here: they show what the guard "
            "is for, and that the guarded resource bears it."
        )
    if outcome.sentinel:
        return (
            "The nodes are Sentinel groups: their masters are killed, stopped, cut off and failed "
            "over, two at once now and then, and their Sentinels are killed and stopped. Workers "
            "are frozen beyond their leases and killed."
        )
    clocks = "" if outcome.clocks else " <b>No C compiler: clocks were left alone.</b>"
    return (
        "At most two nodes are faulty at any time, a node that sits out included, and clocks stay "
        "within the drift allowance. Workers are frozen beyond their leases and killed." + clocks
    )


def _cards(outcome: Outcome) -> str:
    verdict = outcome.verdict
    paused, lost = verdict.plain_lost_to_pauses, verdict.plain_lost
    expected = "good" if bool(verdict.overlaps) == outcome.expects_overlaps else "bad"
    plain = "" if outcome.expects_overlaps or lost == paused else "bad"
    by_pauses = f"{paused} of them to a writer that was paused beyond its lease, after its check"
    revived = [after for after in outcome.revived.values() if after is not None]
    cards = [
        ("", len(outcome.history.holds), "locks taken"),
        ("", sum(outcome.faults.values()), f"faults of {len(outcome.faults)} kinds"),
        (expected, len(verdict.overlaps), "overlaps of two holders that both trusted their lease"),
        (
            "bad" if verdict.fenced_lost else "good",
            verdict.fenced_lost,
            f"updates lost of {verdict.fenced_writes} behind the fencing guard",
        ),
        ("", verdict.fenced_refused, "steps that the guard refused"),
        (plain, lost, f"updates lost of {verdict.plain_writes} without a guard; {by_pauses}"),
        ("", verdict.losses, f"losses reported, {verdict.late_losses} late (after a pause)"),
        (
            "bad" if len(revived) < len(outcome.revived) else "",
            f"{max(revived, default=0):.2f} s",
            "until every key was granted again after the last fault",
        ),
    ]
    return "".join(
        f'<div class="card {kind}"><b>{value}</b><span>{escape(text)}</span></div>'
        for kind, value, text in cards
    )


def _whole(outcome: Outcome) -> str:
    end = max((hold.end for hold in outcome.history.holds), default=outcome.healed)
    return Plot(outcome, outcome.started, min(end, outcome.healed + 5.0), close=False).render()


def _legend() -> str:
    families = (
        ("memory", "forgets: restarted empty or from an old snapshot, flushed"),
        ("process", "stopped"),
        ("network", "cut off, slow, late replies, refused, garbage"),
        ("clock", "clock: steps and rates (ticks: within the allowance)"),
    )
    return "".join(
        f'<i style="background:var(--{name})"></i>{escape(text)}' for name, text in families
    )


def _most_telling(outcome: Outcome) -> tuple[float, float]:
    """Return the part of the run that shows best what it is about."""
    verdict = outcome.verdict
    if verdict.overlaps:
        longest = max(verdict.overlaps, key=lambda overlap: overlap.end - overlap.start)
        middle = (longest.start + longest.end) / 2
    else:
        refused = [
            record.t
            for records in outcome.fenced.values()
            for record in records
            if record.step == "refused"
        ]
        stale = [each.record.t for each in verdict.plain_stale]
        middle = (refused or stale or [outcome.started + 5.0])[0] - _SECONDS_CLOSE / 4
    start = max(outcome.started, middle - _SECONDS_CLOSE / 2)
    return start, start + _SECONDS_CLOSE


def _what_is_told(outcome: Outcome) -> str:
    if outcome.verdict.overlaps:
        return "the longest overlap"
    if outcome.verdict.fenced_refused:
        return "a writer that slept through its lease and was refused"
    return "a moment of the run"


def _rules(outcome: Outcome) -> str:
    broken = {violation.rule for violation in outcome.verdict.violations}
    rules = [
        "tokens are unique",
        "tokens increase in the order of grants",
        "no update is lost behind a guard",
        "a guard accepts no token below the highest it has seen",
        "a loss is reported before trust ends, unless the process was paused",
        "locks are granted again after all faults are mended",
        "nothing stays held longer than its TTL after its holder was killed",
        "workers do not die by themselves",
        "workers end when told to",
    ]
    if outcome.expects_overlaps:
        rules.insert(0, "overlaps are seen where there must be some")
    else:
        rules[:0] = [
            "at most one holder trusts its lease",
            "at most as many as its limit hold a key",
            "nobody is granted a lock that another was granted for longer",
            "tokens increase in the order of holds",
            "nobody overwrites what it has not read while it trusts its lease",
            "a node that forgot serves again",
        ]
    rules += sorted(broken - set(rules))
    rows = "".join(
        f"<tr><td>{escape(rule)}</td><td>"
        + ('<span class="no">broken</span>' if rule in broken else '<span class="ok">held</span>')
        + "</td></tr>"
        for rule in rules
    )
    return f"<table>{rows}</table>"


def _faults(outcome: Outcome) -> str:
    rows = "".join(
        f'<tr><td>{escape(kind)}</td><td class="number">{count}</td></tr>'
        for kind, count in sorted(outcome.faults.items())
    )
    return f"<table>{rows}</table>"


def _violations(outcome: Outcome) -> str:
    if not outcome.verdict.violations:
        return ""
    parts = []
    for violation in outcome.verdict.violations[:20]:
        lines = "\n".join(str(dict(line)) for line in violation.lines[:30])
        parts.append(
            f"<p><b>{escape(violation.rule)}</b>: {escape(violation.what)}</p>"
            f"<pre>{escape(lines)}</pre>"
        )
    return "<h2>Violations</h2>" + "".join(parts)
