"""
The task layer under the same faults: real workers, real publishers, a broker, and a history.

Run `python -m evidence.chaos --tasks --duration 600` for this layer alone.
"""
