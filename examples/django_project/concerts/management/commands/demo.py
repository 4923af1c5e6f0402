"""Starts everything that `rush` needs; a real project has that already."""

import os
import subprocess
import sys
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError


class Command(BaseCommand):
    """`manage.py demo`: needs nothing."""

    help = "Start lock nodes, a broker and a worker, migrate a new database, and run `rush`."
    requires_system_checks = ()

    def handle(self, **_: Any) -> None:
        """Run `rush`, in processes that read the settings again."""
        # `examples`, two directories up, is not part of this project.
        sys.path.append(str(settings.BASE_DIR.parent.parent))
        from examples.stage import Stage

        manage = (sys.executable, str(settings.BASE_DIR / "manage.py"))
        with Stage() as stage:
            os.environ["SHOP_DATABASE"] = str(stage.directory / "shop.sqlite")
            subprocess.run([*manage, "migrate", "--verbosity=0"], check=True)  # noqa: S603
            stage.start_worker("shop", cwd=settings.BASE_DIR)
            if subprocess.run([*manage, "rush"], check=False).returncode:  # noqa: S603
                raise CommandError("that is not as it should be")
