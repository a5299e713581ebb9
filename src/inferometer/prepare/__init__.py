"""What the parent does before t=0, once, whatever the number of shards: the plan, how many shards there are, the encoded requests, and the
job of each shard.

setup.py       what holds for the whole run
plans.py       the plan of the run, of its parts, and of its shards
choice.py      which requests are made before t=0
sizing.py      how many processes and connections a load needs
requests.py    builds and encodes requests and the later turns of sessions, into files that all shards map
builders.py    other processes that do the same, on several cores
jobs.py        the job of each shard
"""
