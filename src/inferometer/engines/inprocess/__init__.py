"""Engines that are used as libraries, each in a process of its own, as people use them in notebooks.

library.py    the parent's side: starts the process, sends commands, receives events within time limits, ends it
messages.py   what crosses over: requests, rows, results
child/        the process itself: plain scripts for any Python interpreter that has the engine's packages
"""
