"""Export formats, from which the options of `run` and `report` (`--json`, `--csv` ...) are made; output.py writes them.

Building the command line must be fast, so this module imports nothing.
"""

EXPORTERS = {
    "json": "Write the summary as JSON: every figure, check and definition.",
    "html": "Write the report as one HTML file with charts, which works without a network.",
    "csv": "Write one row per request as CSV.",
    "perf-csv": "Write one row per stage as CSV, with the columns of perf_analyzer.",
    "markdown": "Write a summary as Markdown, for a pull request or a CI job.",
    "junit": "Write checks and objectives as JUnit XML, one test case each.",
}
"""What the file holds, as the help of the option says it."""
