"""What the machines did meanwhile: taken beside the run, by the parent, at no cost to the shards.

statistics.py   what a KServe server says that it spent its time on
settling.py     whether the stage under way is stable
"""
