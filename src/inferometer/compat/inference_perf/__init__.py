"""inference-perf's config files, run unchanged: its schema, what its keys mean here, and its report files.

reading.py      its file and dotted options -> the effective config (spec.py)
translating.py  the effective config -> our own config, with notes about what was translated to what
running.py      the whole command: read, translate, measure, write the reports
reports/        a stored run -> the report files, by name
"""
