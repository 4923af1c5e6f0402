"""
The faults, and what must see each. Faults that change nothing anybody can rely on are listed too.
"""

from __future__ import annotations

from evidence.planted.answering import TRANSPORT, VOTES
from evidence.planted.arming import ARMING_FAULTS
from evidence.planted.debouncing import DEBOUNCING
from evidence.planted.deciding import DECIDING
from evidence.planted.excluding import EXCLUSION
from evidence.planted.explaining import EXPLAINING
from evidence.planted.extending import EXTENSION
from evidence.planted.failing_over import FAILING_OVER
from evidence.planted.fencing import FENCING
from evidence.planted.guarding import GUARDS
from evidence.planted.handing_over import HAND_OVER
from evidence.planted.interrupting import INTERRUPTING
from evidence.planted.limiting import LIMITING
from evidence.planted.naming import NAMING
from evidence.planted.pausing import PAUSING
from evidence.planted.promoting import PROMOTING
from evidence.planted.recognising import RECOGNITION
from evidence.planted.registering import LATE, REGISTER_FAULTS
from evidence.planted.releasing import RELEASING
from evidence.planted.stopping import STOPPING
from evidence.planted.waiting import WAITING

FAULTS = (
    *(*FENCING, *EXCLUSION, *EXTENSION, *VOTES, *HAND_OVER, *TRANSPORT),
    *(*ARMING_FAULTS, *REGISTER_FAULTS, *LATE, *DECIDING, *GUARDS, *INTERRUPTING),
    *WAITING,
    *PAUSING,
    *RECOGNITION,
    *LIMITING,
    *NAMING,
    *RELEASING,
    *EXPLAINING,
    *STOPPING,
    *DEBOUNCING,
    *FAILING_OVER,
    *PROMOTING,
)

#: Faults that cannot be seen, and why; they are not planted.
EQUIVALENT: dict[str, str] = {
    "extend and release do not raise the counters": (
        "order and uniqueness follow from the quorum of the acquire alone; raising elsewhere keeps "
        "counters of a minority close, which saves second rounds"
    ),
    "the nonce of a reply is not looked at": (
        "replies are matched first in, first out, so a nonce never differs unless that breaks as "
        "well; planted together with it"
    ),
    "only the smallest counter is the token": (
        "a node with a larger counter refuses the second round, so the token is on a quorum "
        "of equal counters or not given; planted together with that refusal gone"
    ),
    "only ExtendRound's lateness check is gone": (
        "Lease.apply_extension looks at the clock again, later; both are gone in a fault"
    ),
    "LATE one comparison later (now > valid_until)": (
        "a lease that is granted at the instant when trust ends is not valid at any instant"
    ),
    "ExtendRound.valid_until without max": "Lease.apply_extension takes the larger anyway",
    "a new backlog is not recorded": (
        "the process and its empty second id are asked for again at each acquire, which costs a "
        "section of INFO and decides the same"
    ),
    "a node's second answer in a round counts": "a transport gives one answer for each command",
}
