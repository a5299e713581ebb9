"""Observers record what others did during a run: they work in the parent process, in threads, at no cost to the shards.

observer.py     the Observer protocol, and the threads that drive observers
statistics.py   an observer that reads the statistics of a KServe server
scrape.py       an observer that scrapes a Prometheus endpoint
metrics_endpoints.py   which endpoints those are
promql.py       an observer that reads the same metrics from a Prometheus server
prometheus_api.py      the HTTP API of that server
raw_samples.py  the samples that were read from it, as if we had scraped them
settling.py     whether the current stage is stable
host.py         an observer of this machine: CPU, memory, network, disk
processes.py    an observer of server processes and their children (found by process_names.py)
gpu.py          an observer of NVIDIA GPUs
"""
