"""When to send: turns a load and a seed into instants. Pure functions, all evaluated before t=0.

process.py         how arrivals scatter around a rate: evenly spaced, Poisson, gamma
profile.py         the rate over time: flat, ramp, steps, bursts
curve.py           the same for a rate that a formula gives
expression.py      the values of such a formula
plan.py            both combined, stage by stage; and a plan's shards for several processes, or its parts for several machines
"""

from inferometer.schedule.plan import (
    check,
    dealt_from,
    max_shards,
    part,
    plan,
    planned_duration,
    rate_at,
    requests_per_arrival,
    shard,
    total_requests,
)

__all__ = [
    "check",
    "dealt_from",
    "max_shards",
    "part",
    "plan",
    "planned_duration",
    "rate_at",
    "requests_per_arrival",
    "shard",
    "total_requests",
]
