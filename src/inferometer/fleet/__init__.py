"""On which machines: the same shard function in this process or in K local ones, started together, merged by concatenation.

job.py     what every shard is told, and how it makes its own part of it
worker.py  a process that runs one shard
supervisor.py    the parent: starts the shards, gives the start, watches, stops
"""
