"""inference-perf's config files, run unchanged: its schema, what its keys mean here, and its report files.

schema.py       every key of its config (data_keys.py: those of `data`), by the kinds of kinds.py
reading.py      its file and dotted options -> the effective config (spec.py)
translating.py  the effective config -> our own config, with notes about what was translated to what
running.py      the whole command: read, translate, measure, write the reports
stage_log.py    when stages start and end, for the log (logging.py)
destinations.py       where the report files go: a folder, and buckets
reports/        a stored run -> the report files, by name
analyze.py      report files -> charts
"""
