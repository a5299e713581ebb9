"""Capacity: the highest load at which a server holds its objectives, as an interval with evidence. Nothing here sends anything.

search.py       which level to probe next, and the interval so far: pure functions of the probes so far
model.py        where the capacity probably is, and which levels will probably decide
sequential.py   whether one probe holds or fails, judged while it runs
result.py       the answer

conduct/capacity.py makes real probes, and report/capacity*.py show the search and the answer.
"""
