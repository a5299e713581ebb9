"""The metrics that model servers offer to Prometheus: read, put into one vocabulary, and turned into figures of a window.

exposition.py   the text of a /metrics page -> samples
vocabulary.py   what we call each quantity, whatever the server calls it
families.py     which metric of which server is which quantity, one table
targets.py      the series of a run, sorted by target and quantity
growth.py       how much counters and histograms grew over a window; resets, buckets, quantiles
figures.py      the series of a run -> the figures of a window: means, deltas, quantiles; replicas are put together

series.parquet has the samples under the names that the server gives them, so a report can be made again with a better table.
"""
