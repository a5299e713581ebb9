"""The benchmarks behind the claims: `python -m bench [NAME ...]`.

Each takes its ratios side by side in one run, because machines differ and are shared, and prints what it holds against what
was found. Results go to bench/results/. The client has one core and the server another.
"""
