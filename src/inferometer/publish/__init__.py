"""Live figures of a run for other tools, from the parent process: the shards know nothing of it.

new_rows.py     reads the requests that have ended from the spool
live_counts.py  sums them up by stage and traffic class: LiveCounts
families.py     the table of metrics, with their values now: LiveFamilies
page.py         the metrics in Prometheus' text format
endpoint.py     the HTTP endpoint that serves the page
"""
