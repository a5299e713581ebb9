"""When to ask: from a load and a seed to instants. Pure functions, all of it before t=0.

process.py   how arrivals lie around a rate: evenly, Poisson, gamma
profile.py   the rate over time: flat, ramp, steps, bursts
plan.py      both together, stage by stage; and its parts for several processes
"""

from inferometer.schedule.plan import max_shards, plan, planned_duration, rate_at, shard, total_requests

__all__ = ["max_shards", "plan", "planned_duration", "rate_at", "shard", "total_requests"]
