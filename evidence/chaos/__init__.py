"""
Real servers, real processes and real faults, with a history that is checked afterwards.

Run `python -m evidence.chaos --duration 60`; `--outside` for faults beyond what the lock assumes,
`--tasks` for real workers and publishers alone, `--locks` for the locks alone, `--sentinel` for
the locks on Sentinel groups that fail over.
"""
