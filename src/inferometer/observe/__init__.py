"""Observers record what others did during a run: they work in the parent process, in threads, at no cost to the shards.

observer.py     the Observer protocol, and the threads that drive observers
statistics.py   an observer that reads the statistics of a KServe server
scrape.py       an observer that scrapes a Prometheus endpoint
metrics_endpoints.py   which endpoints those are
settling.py     whether the current stage is stable
"""
