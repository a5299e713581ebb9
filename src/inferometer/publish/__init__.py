"""Live figures of a run for other tools, from the parent process: the shards know nothing of it.

new_rows.py   reads the requests that have ended from the spool
"""
