"""Where the folders meet: from a config to a run's folder and its report.

    reach the server -> plan -> shards (with a live view) -> spool -> folder -> read it back -> summary -> report

The report of a live run is made from the folder that was just written, by the function that `inferometer report` calls.

measuring.py   one run, from its config to its folder
capacity.py    several short runs: the search for the highest load that holds the objectives
early_ends.py  what ends a run or a stage early: limits (breakers.py) and overloaded stages (saturation.py)
live_rows.py   the rows of a run in progress, as the analysis reads them
capacity_probe.py  one of them, watched while it runs, and what is recorded of it
context.py     whether the longest prompt fits into the model's context
observers.py   what is observed beside a run, and where that is stored
saving.py      from the shards' spool to the run's folder, also for a run that never ended
interrupts.py  Ctrl-C and SIGTERM
comparing.py   several stored runs: which ones a name stands for, and how they compare
experiment.py  several runs in one folder, measured one after the other, and their list
pairs.py       of these: repeats, and interleaved pairs of two servers
sweep.py       of these: the cells of a grid, or the levels of an adaptive range
kinds.py       what is stored in a folder, and its report
parts.py       a run that is measured in parts, by clients that are not in contact
merging.py     one run of these parts, and its manifest (merged_manifest.py)
uploading.py   runs whose output is a bucket: checked before the first request, uploaded at the end
remote.py      stored runs in buckets, copied to a cache
catalog.py     which runs a folder or a bucket holds
campaign.py    several engines in one folder: each is started, measured and ended; campaign_book.py  what is recorded of it
engine_server.py, engine_library.py  an engine of a comparison while it runs
campaign_reading.py  a stored comparison of engines
server_process.py  a server that is started by a command for a run, and ended after it
"""

from inferometer.analysis.abort_expression import parse_limits
from inferometer.analysis.slo_expression import parse_all as parse_slos
from inferometer.conduct.comparing import compare_stored, parse_conditions
from inferometer.conduct.measuring import Watch, measure, measure_to_end
from inferometer.conduct.saving import NotUploadedError, UnsavedError, open_run
from inferometer.report.live import Show

__all__ = [
    "NotUploadedError",
    "Show",
    "UnsavedError",
    "Watch",
    "compare_stored",
    "measure",
    "measure_to_end",
    "open_run",
    "parse_conditions",
    "parse_limits",
    "parse_slos",
]
