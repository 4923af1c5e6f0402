"""
Imports every module of the installed package, where nothing else is installed.

Run by itself (`python -I importing.py`) with the interpreter of such an environment: it finds what
is imported without being asked for in the metadata, and modules that were forgotten in the wheel.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys

import celery_redlock

#: Modules that need an extra, and what they may miss.
EXTRAS = {
    "celery_redlock.cli.screen": {"rich"},
    "celery_redlock.cli.terminal": {"rich"},
    "celery_redlock.fencing.django": {"asgiref", "django"},
    "celery_redlock.fencing.s3": {"boto3", "botocore"},
    "celery_redlock.fencing.sqlalchemy": {"sqlalchemy"},
    "celery_redlock.opentelemetry": {"opentelemetry"},
    "celery_redlock.prometheus": {"prometheus_client"},
    "celery_redlock.testing.containers": {"docker", "pytest", "pytest_celery"},
    "celery_redlock.testing.plugin": {"pytest"},
    "celery_redlock.web": {"starlette", "uvicorn"},
}

#: Modules that run a command when they are imported.
RUN = ("celery_redlock.__main__",)


def main() -> None:
    """Import, count, and fail on the first module that misses what nobody promised."""
    imported, missing = 0, []
    for module in pkgutil.walk_packages(
        celery_redlock.__path__, "celery_redlock.", onerror=lambda _: None
    ):
        if module.name in RUN:
            continue
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] not in allowed(module.name):
                raise
            missing.append(f"{module.name} ({error.name})")
        else:
            imported += 1
    print(f"{imported} modules of {celery_redlock.__file__} imported")
    print(f"{len(missing)} that need an extra: {', '.join(missing)}")
    if not (sys.prefix in celery_redlock.__file__ and imported > len(missing) > 0):
        raise SystemExit("that is not an installed package without extras")


def allowed(module: str) -> set[str]:
    """Return what a module may miss."""
    return {
        name
        for start, names in EXTRAS.items()
        if module == start or module.startswith(f"{start}.")
        for name in names
    }


if __name__ == "__main__":
    main()
