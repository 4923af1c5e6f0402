"""
What people do in Django's admin: make the entry of a schedule, and change it later.

Run as `python -m tests.acceptance.apps.beat_database {make,change} ENTRY ARGS`.
"""

from __future__ import annotations

import sys

import django
from django.core.management import call_command


def make(entry: str, args: str) -> None:
    call_command("migrate", verbosity=0)
    from django_celery_beat.models import IntervalSchedule, PeriodicTask

    every_second = IntervalSchedule.objects.create(every=1, period=IntervalSchedule.SECONDS)
    PeriodicTask.objects.create(name=entry, task="beat.telling", args=args, interval=every_second)


def change(entry: str, args: str) -> None:
    from django_celery_beat.models import PeriodicTask

    found = PeriodicTask.objects.get(name=entry)
    found.args = args
    found.save()


if __name__ == "__main__":
    django.setup()
    globals()[sys.argv[1]](*sys.argv[2:])
