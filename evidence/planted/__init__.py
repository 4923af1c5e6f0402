"""
Faults planted in the shipped code, one at a time; the models or the simulation must see each.

`python -m evidence.planted` plants them all; with names, only those.
"""
