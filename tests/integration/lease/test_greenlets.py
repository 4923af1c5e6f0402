"""Under gevent and eventlet waiting is cooperative, and renewal does not depend on it."""

from __future__ import annotations

from pathlib import Path

import pytest

from celery_redlock.testing import LocalCluster
from tests.support.cases import first_of
from tests.support.greenlets import PATCH, run_with_greenlets
from tests.support.tls import with_tls

BODY = """
import sys, time
from celery_redlock import Redlock
from celery_redlock.core.lease import holding_of
urls = sys.argv[1:]

turns = 0
def count():
    global turns
    while True:
        turns += 1
        time.sleep(0.001)
spawn(count)

client = Redlock(urls, node_timeout=5.0)
other = Redlock(urls, node_timeout=5.0)

# While one greenlet waits for a lock, the others run.
held = client.acquire("key", ttl=2.0, wait=20.0)
before = turns
taken = other.acquire("key", wait=20.0)
assert turns > before + 20, (before, turns)
assert taken.release()

# A greenlet that does not yield does not keep the watchdog from renewing.
told = []
with client.lock("hogged", ttl=4.0, wait=20.0, on_lost=told.append) as lease:
    trust = holding_of(lease).valid_until
    while holding_of(lease).valid_until < trust + 2.0 and lease.lost is None:
        pass
    lease.check()
assert told == []

# Many greenlets share one client.
done = []
def work(number):
    for _ in range(3):
        client.acquire("shared", wait=60.0).release()
    done.append(number)
for number in range(8):
    spawn(work, number)
while len(done) < 8:
    time.sleep(0.01)

# A loss found by the watchdog may use the client from its own thread.
freed = []
lease = client.acquire("doomed", ttl=30.0)
client.watch(lease, on_lost=lambda lost: freed.append(lost.release()), max_hold=0.2)
while not freed:
    time.sleep(0.01)
other.acquire("doomed", wait=20.0).release()
client.close()
other.close()
print("all is well")
"""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", first_of(PATCH))
def test_a_client_works_with_greenlets(redlock_cluster: LocalCluster, kind: str) -> None:
    assert run_with_greenlets(kind, BODY, *redlock_cluster.urls) == "all is well\n"


LOCKS = {
    "gevent": "from gevent.thread import LockType; from gevent.lock import RLock; "
    "kinds = (LockType, RLock)",
    "eventlet": "from eventlet.semaphore import Semaphore; kinds = (Semaphore,)",
}

TOUCH = """
import logging, socket, sys, time
from celery_redlock import Redlock
from celery_redlock.core.lease import holding_of
from celery_redlock._greenlets.unpatched import unpatched

ident = unpatched("_thread", "get_ident")
main = ident()
touched = []

def caller(frame):
    names = []
    while frame is not None:
        names.append(f"{frame.f_code.co_filename}:{frame.f_lineno}")
        frame = frame.f_back
    return "\\n".join(names)

def watch(kind, name):
    method = getattr(kind, name)
    def noting(self, *args, **kwargs):
        if ident() != main:
            touched.append(caller(sys._getframe()))
        return method(self, *args, **kwargs)
    setattr(kind, name, noting)

for kind in kinds:
    watch(kind, "acquire")
    watch(kind, "__enter__")

# Their names are looked up under a lock, too, if there is something to look up.
look_up = socket.getaddrinfo
def looking_up(host, *args, **kwargs):
    if ident() != main and host == "localhost":
        touched.append(caller(sys._getframe()))
    return look_up(host, *args, **kwargs)
socket.getaddrinfo = looking_up

logging.basicConfig(level=logging.DEBUG)
urls = [url.replace("127.0.0.1", "localhost") for url in sys.argv[1:-1]]
client = Redlock([*urls, "redis://localhost:1"], node_timeout=5.0)

# Renewed, beside a node that is down and dialled again and again.
lease = client.acquire("renewed", ttl=4.0, wait=20.0)
client.watch(lease)
trust = holding_of(lease).valid_until
while holding_of(lease).valid_until < trust + 1.5:
    time.sleep(0.01)
lease.release()

# Lost, by its own end and by another's hand.
told = []
def tell(lease):
    logging.warning("told of the loss of %s", lease.key)
    told.append(ident())
client.watch(client.acquire("ended", ttl=30.0), on_lost=tell, max_hold=0.2)
taken = client.acquire("taken", ttl=4.0, wait=20.0)
client.watch(taken, on_lost=tell)
for url in sys.argv[1:-1]:
    import redis
    redis.Redis.from_url(url).set("redlock:taken", "somebody else")
while len(told) < 2:
    time.sleep(0.01)
assert told == [main, main], told
client.close()
assert not touched, touched[0]
print("none touched")
"""


@pytest.mark.parametrize("kind", first_of(PATCH))
def test_native_threads_touch_no_lock_of_the_greenlets(
    redlock_cluster: LocalCluster, kind: str
) -> None:
    assert (
        run_with_greenlets(kind, f"{LOCKS[kind]}\n{TOUCH}", *redlock_cluster.urls)
        == "none touched\n"
    )


TLS = """
import sys, time
from celery_redlock import Redlock
from celery_redlock.core.lease import holding_of

client = Redlock(sys.argv[1:], node_timeout=5.0)
with client.lock("key", ttl=6.0, wait=20.0) as lease:
    trust = holding_of(lease).valid_until
    while holding_of(lease).valid_until < trust + 1.5:
        lease.check()
        time.sleep(0.01)
client.close()
print("renewed and closed")
"""


@pytest.mark.parametrize("kind", first_of(PATCH))
def test_a_lease_is_renewed_over_tls(
    redlock_cluster: LocalCluster, kind: str, tmp_path: Path
) -> None:
    with with_tls(redlock_cluster.urls, tmp_path) as urls:
        assert run_with_greenlets(kind, TLS, *urls) == "renewed and closed\n"


WOKEN = """
import socket, time
from celery_redlock._greenlets.polling import READ, new_poller

pairs = [socket.socketpair() for _ in range(5)]
poller = new_poller()
for end, _ in pairs:
    poller.register(end.fileno(), READ)

def answer():
    for _, other in pairs:
        other.send(b"x")
spawn(answer)

assert poller.poll(10000)
before = time.monotonic()
time.sleep(0.3)
assert time.monotonic() - before >= 0.29
assert len(poller.poll(0)) == 5
print("slept")
"""


@pytest.mark.parametrize("kind", first_of(PATCH))
def test_answers_that_come_together_do_not_wake_what_waits_next(kind: str) -> None:
    assert run_with_greenlets(kind, WOKEN) == "slept\n"
