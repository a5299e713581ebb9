"""From records to results: the table of metrics, exact statistics, the measured window, the checks and the summary."""
