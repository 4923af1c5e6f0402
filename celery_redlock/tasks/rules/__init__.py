"""
Decisions about messages, from facts alone: no Celery, no node, no clock.

Each table is read from its top; the first row that matches decides. The callers collect the facts
and carry the decision out.
"""
