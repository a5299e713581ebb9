"""What `import inferometer` offers to Python code: runs, searches, comparisons, a client for single inferences, and a pytest plugin.

runs.py           `run`, `open` and `Run`
searches.py       `capacity` and `Capacity`
comparisons.py    `compare` and `Comparison`
client.py         `Client`: single inferences; generated.py  the text that it returns
settings.py       from what callers give (a path, a URL, a mapping, overrides) to a Config
pages.py          HTML pages inside a notebook
pytest_plugin.py  the fixture `inferometer_run` and the marker `slo`

`inferometer/__init__.py` lists the public names and imports each when it is first used.
"""
