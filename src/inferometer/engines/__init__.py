"""Starting, hosting and stopping the engines of a comparison: `inferometer engines`.

launching.py  how a server engine is started: what each file in servers/ returns, and what all of them use
servers/      one small file per server engine; its table is catalog.py
catalog.py    every type of engine and what it can do
process.py    a server process: started with a log, watched, and ended with everything that it started
readiness.py  waits until a server is really ready: its health, and a first good response
milestones.py  the phases of a start-up and the engine's facts, by lines of the log
failures.py   why a server ended or did not get ready, by its exit status and its log
inprocess/    engines that are used as libraries, each in a process of its own
model_files.py  what the model's files say: parameters, layers, data type; dropping them from the page cache
"""
