"""Where shards run: the same shard function in this process, in local processes, or behind a socket; results are concatenated.

job.py         what every shard is given, and what follows from it for each
sizing.py      how many processes and connections a load needs
runner.py      runs one shard
control.py     the messages between the parent and a shard, whatever carries them
local.py       shards in local processes or threads;  worker.py  the main function of such a process
tcp.py         shards that share neither a folder nor a clock with their parent
supervisor.py  the parent: starts the shards together, watches them, stops them
dealing.py     what the parent deals out to shards during a run: the requests of closed stages that a number ends
lost.py        rows for the requests of a shard that died
"""
