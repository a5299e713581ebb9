"""Where shards run: the same shard function in this process, in local processes, or on Ray; results are concatenated.

runner.py      runs one shard
control.py     the messages between the parent and a shard, whatever carries them
local.py       shards in local processes or threads;  worker.py  the main function of such a process
ray_fleet.py   shards on the nodes of a Ray cluster, which share neither a folder nor a clock with their parent: the parent's end, with
               ray_shard.py and ray_actors.py;  ray_actor.py  the node's;  ray_cluster.py  the cluster itself
copying.py     copies a shard's folder to its parent;  clocks.py  other machines' clocks;  shipping.py  the files that they need
supervisor.py  the parent: starts the shards together, watches them, stops them
dealing.py     what the parent deals out to shards during a run: the requests of closed stages that a number ends
lost.py        rows for the requests of a shard that died
"""
