"""
Faults in the rules about calls with one key.
"""

from __future__ import annotations

from tests.mutants.writing import ARRIVAL, PUBLISH, modelled, mutant

DECIDING = (
    mutant(
        "a call that somebody waits for is dropped",
        modelled("calls-ends-plain"),
        (PUBLISH, "lambda o: o.tied, Publish.SEND_AS_DUPLICATE", "lambda o: False, Publish.SEND"),
    ),
    mutant(
        "a duplicate that has to be sent carries nothing",
        modelled("calls-ends-tied"),
        (PUBLISH, "lambda o: o.tied, Publish.SEND_AS_DUPLICATE", "lambda o: o.tied, Publish.SEND"),
    ),
    mutant(
        "a call after the first one's result is dropped",
        modelled("calls-ends-plain"),
        (PUBLISH, "lambda o: o.ended and not o.awaited,", "lambda o: False,"),
        (PUBLISH, "lambda o: o.ended, Publish.SEND_AFTER", "lambda o: False, Publish.SEND_AFTER"),
    ),
    mutant(
        "a call that has waited for the release of an ended task is dropped",
        modelled("calls-ends-plain"),
        (PUBLISH, "lambda o: o.ended, Publish.SEND_AFTER", "lambda o: False, Publish.SEND_AFTER"),
    ),
    mutant(
        "the next step of a chain is sent as the duplicate of the step before",
        modelled("calls-ends-chain"),
        (PUBLISH, "and (o.tied or o.ended),", "and False,"),
        (PUBLISH, "lambda o: o.ended and not o.awaited,", "lambda o: False,"),
        (PUBLISH, "lambda o: o.ended, Publish.SEND_AFTER", "lambda o: False, Publish.SEND_AFTER"),
    ),
    mutant(
        "the next step of a chain does not name the step before",
        modelled("calls-ends-chain"),
        (
            PUBLISH,
            "and (o.tied or o.ended),\n        Publish.SEND_AFTER,",
            "and (o.tied or o.ended),\n        Publish.SEND,",
        ),
    ),
    mutant(
        "a newer call is dropped for one that waits",
        modelled("calls-ends-newest"),
        (
            PUBLISH,
            "o.role is Role.QUEUED,\n        Publish.REPLACE,",
            "False,\n        Publish.REPLACE,",
        ),
    ),
    mutant(
        "a newer call is dropped for one that runs",
        modelled("calls-ends-newest"),
        (
            PUBLISH,
            "o.role is Role.RUNNING,\n        Publish.SEND,",
            "False,\n        Publish.SEND,",
        ),
    ),
    mutant(
        "a finished call counts for nothing",
        modelled("calls-ends-tied"),
        (ARRIVAL, "if Role.FINISHED in marks:", "if Role.SKIPPED in marks:"),
    ),
    mutant(
        "a call whose key is free already does not run",
        modelled("calls-starts-tied"),
        (ARRIVAL, "self.mark in (Role.RUNNING, Role.REPLACED) or self.key in", "self.key in"),
    ),
    mutant(
        "a duplicate is skipped although the first call was revoked",
        modelled("calls-ends-tied"),
        (
            ARRIVAL,
            "r.evidence is Evidence.GONE, Arrival.TAKE",
            "r.evidence is Evidence.GONE, Arrival.SKIP",
        ),
    ),
    mutant(
        "a duplicate waits for ever for a call that was revoked",
        modelled("calls-ends-tied"),
        (
            ARRIVAL,
            "r.evidence is Evidence.GONE, Arrival.TAKE",
            "r.evidence is Evidence.GONE, Arrival.REQUEUE",
        ),
    ),
    mutant(
        "a repetition runs after the call that replaced the first",
        modelled("calls-ends-mixed"),
        (
            ARRIVAL,
            "r.evidence is Evidence.REPLACED, Arrival.SKIP",
            "r.evidence is Evidence.REPLACED, Arrival.TAKE",
        ),
    ),
    mutant(
        "a repetition takes its turn although the first does the work",
        modelled("calls-ends-refused"),
        (ARRIVAL, 'r.policy == "raise", Arrival.FAIL', 'r.policy == "raise", Arrival.TAKE'),
    ),
)
