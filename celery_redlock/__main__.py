"""
`python -m celery_redlock` is `celery-redlock`.
"""

import sys

from celery_redlock.cli import main

if __name__ == "__main__":
    sys.exit(main())
