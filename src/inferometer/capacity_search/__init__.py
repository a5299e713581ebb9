"""Capacity: the highest load at which a server holds its objectives, as an interval with evidence. Nothing here sends anything.

trials.py          what the search asks for, and what it has seen
explore.py         the closed loops at its start, and what their curve says about the capacity
model.py           where the capacity probably is, by the closed loops and the probes so far
search.py          which level to probe next, and the interval so far: pure functions of the probes so far
objectives.py      what must hold
probe_verdict.py   the verdict of one probe: looks while it runs, and when it is over
judgement.py       whether requests hold or fail the objectives
probe_requests.py  the requests of a probe that have no end
served.py          how many requests per second a server served during a probe
result.py          the answer

conduct/capacity.py makes real probes, and report/capacity*.py show the search and the answer.
"""
