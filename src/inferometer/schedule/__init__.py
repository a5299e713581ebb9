"""When to send: turns a load and a seed into instants. Pure functions, all evaluated before t=0.

process.py         how arrivals scatter around a rate: evenly spaced, Poisson, gamma
profile.py         the rate over time: flat, ramp, steps, bursts
plan.py            both combined, stage by stage; and a plan's shards for several processes
"""

from inferometer.schedule.plan import dealt_from, max_shards, plan, planned_duration, rate_at, shard, total_requests

__all__ = ["dealt_from", "max_shards", "plan", "planned_duration", "rate_at", "shard", "total_requests"]
