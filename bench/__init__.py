"""The benchmarks behind the claims: `python -m bench [NAME ...]`.

Each measures its ratios side by side in one run, because machines differ and are shared, and prints each result next to its
target. Results go to bench/results/. The client has one core and the server another.
"""
