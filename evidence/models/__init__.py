"""
Exhaustive exploration of the shipped protocol: every schedule of few contenders on three nodes.

`python -m evidence.models` explores every configuration; with names, only those.
"""
