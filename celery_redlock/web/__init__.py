"""
One page in a browser for the people who run it: locks, those that wait, and the nodes, live.

Needs `pip install "celery-redlock[web]"`.
"""
