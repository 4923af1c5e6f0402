"""What counts as the same value, and what does not."""

from __future__ import annotations

import subprocess
import sys

from tests.support import forked


def test_a_set_has_one_form_in_every_process() -> None:
    program = (
        "from celery_redlock.tasks.keys.canonical import canonical;"
        "print(canonical({'tags': {'a', 'b', 'c', 'd', 'e'}}))"
    )
    texts = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(texts) == 1


def test_pydantic_is_not_imported_by_us() -> None:
    program = (
        "import sys; from celery_redlock.tasks.keys.canonical import canonical;"
        "canonical({'a': [1]}); sys.exit('pydantic' in sys.modules)"
    )
    forked.run("-c", program)
