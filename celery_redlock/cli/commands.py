"""
The commands, their arguments and their exit statuses.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
from collections.abc import Iterator
from typing import Any

import click

from celery_redlock import __version__
from celery_redlock.cli.output import print_json, printable
from celery_redlock.cli.target import Target, targeted
from celery_redlock.errors import ConfigurationError, LockKeyError, RedlockError
from celery_redlock.protocol.timing import UNITS

if "celery" in sys.modules:
    # Celery's command loads this module, before its app; `celery-redlock` may do without Celery.
    from celery_redlock.cli import plugin

    plugin.connect()

FAILED = 1
MISUSED = 2

_STATUSES = "Exit status: 0 if {}, 1 if {}, 2 for a wrong command or setting."


class _Group(click.Group):
    """
    Ends with the exit status that a command returns.

    It prints an error in one line, even where Celery's command runs this group.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        with _errors_in_one_line(ctx):  # the help is printed here
            return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        with _errors_in_one_line(ctx):
            status = super().invoke(ctx)
        ctx.exit(status)


@contextlib.contextmanager
def _errors_in_one_line(ctx: click.Context) -> Iterator[None]:
    try:
        try:
            yield
        finally:
            # Output that cannot be written fails this command, and not the end of Python.
            sys.stdout.flush()
    except RedlockError as exc:
        click.echo(f"celery-redlock: {printable(str(exc))}", err=True)
        is_misuse = isinstance(exc, (ConfigurationError, LockKeyError))
        ctx.exit(MISUSED if is_misuse else FAILED)
    except BrokenPipeError:
        _discard_output()
        ctx.exit(128 + signal.SIGPIPE)
    except OSError as exc:
        _discard_output()
        click.echo(f"celery-redlock: {exc}", err=True)
        ctx.exit(FAILED)


def _discard_output() -> None:
    """Discard what could not be written: Python would report it once more at its end."""
    with contextlib.suppress(OSError):  # a test's output is no file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@click.group(cls=_Group, invoke_without_command=True)
@click.version_option(__version__, message="%(prog)s %(version)s")
@targeted
@click.pass_context
def redlock(ctx: click.Context, target: Target) -> int:
    """Locks for Celery tasks on independent Redis nodes."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
    return MISUSED  # unless there is a command, whose status counts


_as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
_prefix = click.option(
    "--key-prefix", metavar="TEXT", help="redlock_key_prefix of the keys; only with --nodes."
)


@redlock.command(epilog=_STATUSES.format("every node votes now", "one does not"))
@targeted
@click.option(
    "--force",
    is_flag=True,
    help="Let every node that answers vote, whatever its record. Use it only while no lock is held "
    "anywhere.",
)
@_as_json
def init(target: Target, *, force: bool, as_json: bool) -> int:
    """
    Let brand-new lock nodes vote at once.

    A node that has no quarantine record may have lost its locks in a crash, so it does not vote
    until the longest possible lease has expired. This command makes brand-new nodes vote at once,
    provided that there are several, all of them answer, and none has a record. A set that has lost
    the data of all its nodes looks brand-new as well: do not run the command then.
    """
    # Without Celery, which takes a second to import.
    from celery_redlock.core import arm_nodes
    from celery_redlock.transport import advice_about, parse_nodes

    nodes = target.nodes()
    if advice := advice_about(parse_nodes(nodes)):
        click.echo(f"celery-redlock: {advice}", err=True)
    answers = arm_nodes(nodes, force=force)
    if as_json:
        shown = [
            {
                "url": answer.name,
                "state": answer.state,
                "votes": answer.serves,
                "detail": answer.detail,
            }
            for answer in answers
        ]
        print_json({"nodes": shown})
    else:
        width = max(len(answer.name) for answer in answers)
        for answer in answers:
            print(f"{answer.name:<{width}}  {answer.state:<12}{printable(answer.detail)}")
    return 0 if all(answer.serves for answer in answers) else 1


@redlock.command(
    epilog=_STATUSES.format("a beat leads the schedule", "none does or too few lock nodes answer")
)
@targeted
@_as_json
def beat(target: Target, *, as_json: bool) -> int:
    """
    Show which beat leads a schedule, and the last run of each entry.

    Reads what the lock nodes record about the schedule of an app whose beats run RedlockScheduler.
    """
    # Importing Celery takes a second, which `init --nodes` and `--help` do not need.
    from celery_redlock.cli.beat import show_beat

    return show_beat(target.app(), as_json=as_json)


@redlock.command(epilog=_STATUSES.format("no error is found", "one is"))
@targeted
@_as_json
def doctor(target: Target, *, as_json: bool) -> int:
    """
    Find what is wrong with the lock nodes.

    Asks every node whether it answers, votes, keeps its data and grants the rights that
    locks need, and compares their clocks. It changes nothing. Each finding has a severity, a code
    that does not change from one version to the next, and the remedy.
    """
    from celery_redlock.cli.doctor import examine

    return examine(target, as_json=as_json)


@redlock.command(epilog=_STATUSES.format("the task takes a lock", "it takes none"))
@targeted
@click.argument("name", metavar="TASK")
@click.argument("words", metavar="[ARG]...", nargs=-1)
@click.option("-a", "--args", metavar="JSON", help="The positional arguments as an array.")
@click.option("-k", "--kwargs", metavar="JSON", help="The keyword arguments as an object.")
@_as_json
def explain(target: Target, **options: Any) -> int:
    """
    Explain what the options of a task mean.

    Prints its lock keys for a call with these arguments, when they are taken, the outcome of
    another call in each state of the first and during a pause, the effects of failures, and the
    origin of each option. The text comes from the rules that decide about messages. The command
    contacts no node and no broker. Each ARG is JSON, a Python literal or a plain word; without any,
    keys are templates.
    """
    from celery_redlock.cli.explain import explain_task

    return explain_task(target, **options)


@redlock.command("list", epilog=_STATUSES.format("a lock is held", "none is, or no quorum answers"))
@targeted
@click.argument("pattern", default="*")
@_prefix
@_as_json
def list_(target: Target, **options: Any) -> int:
    """
    List the locks that the nodes hold.

    Prints one row for each key, or slot of a key with a limit or a rate, as soon as it is found.
    PATTERN is a glob on the keys as tasks write them: *, ?, [abc]; [*] is a star. A leftover is a
    key that only a minority of the nodes has: it keeps no other holder out, and expires. A rate
    counts the start of a task until its slot expires. A paused key is listed whether or not it is
    held, with the user and host that paused it.
    """
    from celery_redlock.cli.locks import show_locks

    return show_locks(target, **options)


@redlock.command(epilog=_STATUSES.format("the key is held", "it is not, or no quorum answers"))
@targeted
@click.argument("key")
@_prefix
@_as_json
def show(target: Target, **options: Any) -> int:
    """
    Show the holders of a key, what each node has of it, and its waiters.

    Includes all slots of a key with a limit or a rate, and the lock of a message in the queue.
    """
    from celery_redlock.cli.locks import show_key

    return show_key(target, **options)


@redlock.command(
    epilog=_STATUSES.format("a lock was released", "none was held, or no quorum answers")
)
@targeted
@click.argument("key", required=False)
@click.option("--task", metavar="NAME", help="Release the locks of this task's calls.")
@click.option(
    "--state",
    type=click.Choice(["queued", "running", "finished", "any"]),
    help="With --task: only the locks of calls in this state; queued by default.",
)
@click.option("--id", "task_id", metavar="ID", help="Only locks of the task with this id.")
@click.option("--rates", is_flag=True, help="With a key: also forget what a rate has counted.")
@click.option(
    "--revoke", is_flag=True, help="Keep queued messages that lose their locks from running."
)
@click.option("--yes", "sure", is_flag=True, help="Do not ask.")
@_prefix
@_as_json
def release(
    target: Target,
    *,
    key: str | None,
    task: str | None,
    state: str | None,
    task_id: str | None,
    rates: bool,
    revoke: bool,
    sure: bool,
    as_json: bool,
) -> int:
    """
    Take a lock away from its holder, or the locks of a task's calls.

    After a purge the locks of the purged messages would refuse further calls for lock_queue_ttl:
    `release --task NAME` frees them. A message that the broker still has, in a queue or for a
    worker that was killed, runs nevertheless; with --revoke it does not. A running holder
    learns of the loss at its next extension, and may write until it reacts; only a resource that
    checks fencing tokens refuses its writes.
    """
    if (key is None) == (task is None):
        raise click.UsageError("give either a key or --task NAME.")
    if key is not None and state is not None:
        raise click.UsageError(
            "--state is for --task NAME: it selects among the calls of that task."
        )
    if revoke and state in ("running", "finished"):
        raise click.UsageError(f"--revoke is for queued messages, not for calls in state {state}.")
    if task is not None and rates:
        raise click.UsageError("--rates is for a key: a task's release leaves rates as they are.")
    from celery_redlock.cli.locks import release_key, release_of_task

    how: Any = {"task_id": task_id, "revoke": revoke, "sure": sure, "as_json": as_json}
    if key is not None:
        return release_key(target, key, rates=rates, **how)
    of = None if state == "any" else state or "queued"
    return release_of_task(target, task or "", state=of, **how)


def duration(value: str) -> float:
    """Return the seconds of a time as people write it: 90, 90s, 30m, 2h or 1d."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", value, re.ASCII)
    if found is None or not float(found[1]):
        raise click.BadParameter(f"{value!r} is not a time; write 90, 90s, 30m, 2h or 1d.")
    return float(found[1]) * UNITS[found[2] or "s"]


@redlock.command(epilog=_STATUSES.format("the key is paused", "no quorum answers"))
@targeted
@click.argument("key")
@click.option(
    "--for",
    "seconds",
    type=duration,
    required=True,
    metavar="TIME",
    help="How long: 90 or 90s, 30m, 2h, 1d. A second pause moves the end.",
)
@_prefix
@_as_json
def pause(target: Target, **options: Any) -> int:
    """
    Refuse a key to all callers for a while.

    Holders keep it. Calls are accepted and queued; no body begins. Messages come back when the
    pause ends. A limit and a rate of the same name are paused with it. A node that is down now, or
    loses its data, grants the key: pause it again then.
    """
    from celery_redlock.cli.locks import pause_key

    return pause_key(target, **options)


@redlock.command(
    epilog=_STATUSES.format("the pause has ended", "the key was not paused or no quorum answers")
)
@targeted
@click.argument("key")
@_prefix
@_as_json
def resume(target: Target, **options: Any) -> int:
    """
    End the pause of a key, and wake those that wait for it.
    """
    from celery_redlock.cli.locks import resume_key

    return resume_key(target, **options)


@redlock.command(
    epilog="Exit status: 0 when q or Ctrl-C is pressed, 2 for a wrong command or setting."
)
@targeted
@click.argument("text", metavar="[FILTER]", default="")
@click.option(
    "--every",
    type=click.FloatRange(min=0.1),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="Time between two polls of the nodes.",
)
@_prefix
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON for each poll.")
def watch(target: Target, **options: Any) -> int:
    """
    Watch locks, waiters and nodes until q is pressed.

    Locks with the most waiters come first, then those that are held for longest. FILTER is a glob
    on the keys, or a part of a key, task, id, host or state.
    """
    from celery_redlock.cli.live import watch_locks

    return watch_locks(target, **options)


@redlock.command(epilog="Exit status: 0 once it is interrupted, 2 for a wrong command or setting.")
@targeted
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Name or address to listen on."
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=5577,
    show_default=True,
    help="Port to listen on; 0: a free port.",
)
@click.option(
    "--token",
    metavar="TEXT",
    envvar="CELERY_REDLOCK_WEB_TOKEN",
    help="Token that viewers need. Taken from the environment, it stays hidden from others on this "
    "machine. By default there is none on loopback, and a new one elsewhere.",
    show_envvar=True,
)
@click.option("--read-only", is_flag=True, help="Viewers cannot release locks.")
@_prefix
@_as_json
def web(target: Target, **options: Any) -> int:
    """
    Show locks and nodes in a browser, live.

    One page shows the locks, their holders and waiters, and what the doctor finds. Locks can be
    released there. Beyond loopback, viewers need the token in the URL that is printed. Without
    viewers, the server does not query the nodes. The JSON object is {"url": URL}, printed once the
    server listens.
    """
    from celery_redlock.cli.live import serve

    return serve(target, **options)
