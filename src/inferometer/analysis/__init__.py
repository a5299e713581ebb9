"""What the records mean: metrics (one table), exact percentiles, the window that counts, the checks, the summary."""
