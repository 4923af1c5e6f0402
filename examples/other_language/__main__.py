"""
A Celery task and a Node.js service that exclude each other: `python -m examples.other_language`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from examples.stage import TIMEOUT, Stage, expect, until

HERE = Path(__file__).parent
ITEM = "umbrella"
STOCK = 100
SALES = 25


def main() -> None:
    """Start servers and a worker, and play the example."""
    install()
    with Stage() as stage:
        os.environ["SHOP_DIRECTORY"] = str(stage.directory)
        (stage.directory / "stock").write_text(str(STOCK))
        stage.start_worker("examples.other_language.tasks")
        the_service_holds_it()
        a_task_holds_it(stage.directory)
        both_sell(stage)


def install() -> None:
    """Install the packages of the service, for Node.js."""
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            raise SystemExit(
                f"This example needs Node.js 18 or newer, and there is no {program!r} here. "
                "On Debian: apt-get install nodejs npm"
            )
    if not (HERE / "node_modules" / "redlock").exists():
        print("Installing the npm packages that package-lock.json names.")
        command = ["npm", "ci", "--no-audit", "--no-fund", "--loglevel=error"]
        subprocess.run(command, cwd=HERE, check=True)  # noqa: S603 - of literals


def service(*arguments: str) -> subprocess.Popen[str]:
    """Start the service."""
    return subprocess.Popen(  # noqa: S603 - our own script
        ["node", str(HERE / "service.js"), *arguments],  # noqa: S607 - wherever Node.js is
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def the_service_holds_it() -> None:
    """Let a task wait for the service."""
    from examples.other_language.tasks import sell

    with service("hold") as node:
        until(lambda: node.stdout is not None and node.stdout.readline(), "the service's lock")
        print("The service, in JavaScript, holds the lock.")
        holder = sell.lock_holder(ITEM)
        expect(
            f"the nodes show Python that it is {holder and holder.state}, no task",
            holder is not None and holder.state == "foreign",
        )
        sale = sell.delay(ITEM)
        until(lambda: sale.state != "PENDING", "the task to arrive")
        expect("a task waits", not sale.ready())
    print("The service releases it.")
    left = until(lambda: sale.ready() and sale.get(), "the task")
    print(f"The task has run: {left} left.")


def a_task_holds_it(directory: Path) -> None:
    """Let a task run, and the service contend with it."""
    from examples.other_language.tasks import sell

    (directory / "closed").touch()
    sale = sell.delay(ITEM)
    holder = until(lambda: sell.lock_holder(ITEM), "the task's lock")
    print(f"A task holds the lock, in process {holder.pid}.")
    expect("the service is refused", ask_once() == "refused")
    (directory / "closed").unlink()
    until(lambda: sale.ready() and sell.lock_holder(ITEM) is None, "the task")
    expect("it gets the lock when the task has ended", ask_once() == "taken")


def ask_once() -> str:
    """Let the service try to get the lock."""
    output, _ = service("try").communicate(timeout=TIMEOUT)
    return output.strip()


def both_sell(stage: Stage) -> None:
    """Let tasks and the service sell at the same time."""
    from examples.other_language.tasks import sell

    before = int((stage.directory / "stock").read_text())
    print(f"{SALES} tasks and {SALES} sales of the service, all at once; {before} in stock.")
    sales = [sell.delay(ITEM) for _ in range(SALES)]
    with service("sell", str(SALES)) as node:
        pass
    until(lambda: all(sale.ready() for sale in sales), "the tasks")
    fine = node.returncode == 0 and all(sale.successful() for sale in sales)
    expect("nobody was inside while somebody else was", fine)
    left = int((stage.directory / "stock").read_text())
    expect(f"{2 * SALES} were sold, {left} are left", left == before - 2 * SALES)


if __name__ == "__main__":
    main()
