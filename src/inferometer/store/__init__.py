"""Runs on disk: a folder of manifest.json, Parquet files (requests, chunks, samples, series) and summary.json.

The manifest is written after the Parquet files, so a folder that has one is complete. summary.json can always be made again.
"""

from inferometer.store.folder import new_folder, point_latest, write_summary
from inferometer.store.reading import read, written
from inferometer.store.writing import write

__all__ = ["new_folder", "point_latest", "read", "write", "write_summary", "written"]
