"""Models of the shapes that people have."""

from __future__ import annotations

from django.db import models

from celery_redlock.fencing.django import FencedModel, FencedQuerySet, FencingTokenField


class Owner(models.Model):
    name = models.CharField(max_length=40)


class Account(FencedModel):
    owner = models.ForeignKey(Owner, null=True, on_delete=models.CASCADE)
    balance = models.BigIntegerField(default=0)
    token = models.CharField(max_length=40, default="")


class SavingsAccount(Account):
    """In a table of its own, joined to its parent's."""

    rate = models.IntegerField(default=0)


class Favourite(Account):
    """The same table under another name."""

    class Meta:
        proxy = True


class BusyQuerySet(FencedQuerySet):
    def busy(self) -> BusyQuerySet:
        return self.filter(size__gt=0)


class Job(models.Model):
    """With its own manager, and a column that was added without a default."""

    size = models.IntegerField(default=0)
    fencing_token = FencingTokenField(null=True, default=None)
    objects = BusyQuerySet.as_manager()


class Unfenced(models.Model):
    objects = FencedQuerySet.as_manager()
