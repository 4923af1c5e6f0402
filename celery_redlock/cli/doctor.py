"""
`celery-redlock doctor`: what is wrong with the nodes, and the remedy.
"""

from __future__ import annotations

import click

from celery_redlock.admin.broker_diagnosis import diagnose_broker
from celery_redlock.admin.diagnosis import Finding, Severity, as_data, by_urgency, diagnose
from celery_redlock.admin.node_report import NodeReport, clock_correction, report_nodes
from celery_redlock.cli.output import print_json, print_table, print_text
from celery_redlock.cli.target import Target

_HEADINGS = ("NODE", "LATENCY", "ROLE", "SERVER", "UP", "KEEPS", "GUARD", "CLOCK")
_COLOURS = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.INFO: "blue"}
_NUMBERS = ("LATENCY", "UP", "CLOCK")


def examine(target: Target, *, as_json: bool) -> int:
    """
    Print the facts about all nodes, and what is wrong with them; return 1 if there is an error.

    Args:
        target: the nodes or the app.
        as_json: print one JSON object.

    Raises:
        ConfigurationError: there is no such app, or its settings cannot be used.
    """
    reports, findings = _findings_about(target)
    if as_json:
        print_json(as_data(reports, findings))
    else:
        print_table(_HEADINGS, [_row(report) for report in reports], numbers=_NUMBERS)
        _print_findings(findings)
    return int(any(finding.severity is Severity.ERROR for finding in findings))


def _findings_about(target: Target) -> tuple[tuple[NodeReport, ...], tuple[Finding, ...]]:
    """Return the facts about all nodes, and what is wrong with them; errors as for `examine`."""
    settings = target.settings()
    reports = report_nodes(target.nodes(), key_prefix=settings.prefix_on_nodes)
    findings = diagnose(reports, settings, clock_correction())
    if target.urls is None:
        findings = by_urgency((*findings, *diagnose_broker(target.app())))
    return reports, findings


def _row(report: NodeReport) -> list[str]:
    if report.failure is not None:
        return [report.url, *["-"] * (len(_HEADINGS) - 1)]
    left = "" if report.quarantine_left is None else f" {report.quarantine_left:.0f} s"
    return [
        report.url,
        "-" if report.latency is None else f"{report.latency * 1000:.1f} ms",
        report.role or "-",
        " ".join(filter(None, (report.server, report.version))) or "-",
        "-" if report.uptime is None else f"{report.uptime} s",
        report.persistence or "-",
        f"{report.guard or '-'}{left}",
        "-" if report.clock_skew is None else f"{report.clock_skew:+.3f} s",
    ]


def _print_findings(findings: tuple[Finding, ...]) -> None:
    if not findings:
        click.echo("\nNothing is wrong.")
    alike: dict[tuple[Severity, str, str], list[str]] = {}
    for one in findings:
        nodes = alike.setdefault((one.severity, one.code, one.message), [])
        nodes += [] if one.node is None else [one.node]
    for (severity, code, message), nodes in alike.items():
        click.echo()
        print_text(f"{severity} [{code}] {', '.join(nodes)}".rstrip(), colour=_COLOURS[severity])
        print_text(message, indent=2)
