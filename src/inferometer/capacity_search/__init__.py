"""Capacity: the highest load at which a server holds its objectives, as an interval with evidence. Nothing here sends anything.

trials.py      what the search asks for, and what it has seen
explore.py     the closed loops at its start, and what their curve says about the capacity
model.py       where the capacity probably is, by the closed loops and the probes so far
search.py      which level to probe next, and the interval so far: pure functions of the probes so far
judgement.py   whether one probe holds or fails, judged while it runs and when it is over
served.py      how many requests per second a server served during a probe
result.py      the answer

conduct/capacity.py makes real probes, and report/capacity*.py show the search and the answer.
"""
