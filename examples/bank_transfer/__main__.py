"""
Thirty transfers, and one that slept too long: `python -m examples.bank_transfer`.
"""

from __future__ import annotations

import os
import random
import signal
from collections import Counter

from examples.stage import Stage, expect, until

ACCOUNTS = ("alice", "bob", "carol", "dave")
OPENING_BALANCE = 1000
TRANSFERS = 30


def main() -> None:
    """Start servers and a worker, and play the example."""
    with Stage() as stage:
        os.environ["BANK_DATABASE"] = f"sqlite:///{stage.directory}/bank.sqlite"
        open_accounts()
        stage.start_worker("examples.bank_transfer.tasks")
        sent = everybody_pays_everybody()
        sent += one_sleeps_too_long()
        check_balances(sent)


def open_accounts() -> None:
    """Make the database."""
    # Not at the top: the module needs the addresses of the servers when it is imported.
    from examples.bank_transfer.tasks import Account, Base, Session, engine

    Base.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        session.add_all(Account(name=name, balance=OPENING_BALANCE) for name in ACCOUNTS)
    print(f"{len(ACCOUNTS)} accounts with {OPENING_BALANCE} each.")


def everybody_pays_everybody() -> int:
    """Send transfers in both directions between all accounts; return how many."""
    from examples.bank_transfer.tasks import transfer

    pairs = [random.sample(ACCOUNTS, 2) for _ in range(TRANSFERS)]
    results = [transfer.delay(source, target, 10) for source, target in pairs]
    print(f"{TRANSFERS} transfers sent, in both directions between them.")
    until(lambda: all(result.ready() for result in results), "the transfers to be done")
    outcomes = Counter(result.get() for result in results)
    print("Outcomes:", ", ".join(f"{number} {what}" for what, number in outcomes.items()))
    return outcomes["booked"]


def one_sleeps_too_long() -> int:
    """Freeze a body between its read and its write; return how many transfers were sent."""
    from examples.bank_transfer.tasks import transfer

    late = transfer.delay("alice", "bob", 1, freeze=True)
    until(lambda: late.state == "FROZEN", "a body that has read and not yet written")
    pid = late.info["pid"]
    print(f"Process {pid} is frozen with the lock on alice and bob, after it has read balances.")
    other = transfer.delay("alice", "carol", 1)
    outcome = until(lambda: other.ready() and other.get(), "the lock of the frozen body to expire")
    print(f"Its lock has expired: a frozen process extends none. alice pays carol 1: {outcome}.")
    os.kill(pid, signal.SIGCONT)
    print(f"Process {pid} wakes, and writes the balances that it has computed before.")
    outcome = until(lambda: late.ready() and late.get(), "the retry of the late transfer")
    print(f"Celery has retried the transfer: {outcome}.")
    refused = refusals_of(late.id)
    expect("the late write was refused, because its token is older", bool(refused))
    for token, newer in refused:
        print(f"      token {token} came after {newer}")
    return 2


def refusals_of(transfer: str) -> list[tuple[int, int]]:
    """Return each refused token of a transfer, and the newer one that the row had seen."""
    from examples.bank_transfer.tasks import Refusal, Session, engine, select

    with Session(engine) as session:
        found = select(Refusal.token, Refusal.newer).where(Refusal.transfer == transfer)
        return [(row.token, row.newer) for row in session.execute(found)]


def check_balances(sent: int) -> None:
    """Compare the balances with the booked transfers."""
    from examples.bank_transfer.tasks import Account, Session, Transfer, engine, select

    with Session(engine) as session:
        booked = session.scalars(select(Transfer)).all()
        balances = {each.name: each.balance for each in session.scalars(select(Account))}
    right = Counter(dict.fromkeys(ACCOUNTS, OPENING_BALANCE))
    for each in booked:
        right[each.source] -= each.amount
        right[each.target] += each.amount
    print("Balances:", ", ".join(f"{name} {balance}" for name, balance in balances.items()))
    expect(f"{sent} transfers are in the books, each once", len(booked) == sent)
    expect("every balance is what the transfers come to", balances == dict(right))


if __name__ == "__main__":
    main()
