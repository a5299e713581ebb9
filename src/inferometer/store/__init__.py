"""Where a run goes: a folder of manifest.json, requests.parquet, chunks.parquet, samples.parquet and summary.json.

The manifest is written last of the records' files: a folder that has one is whole. summary.json can always be made again.
"""

from inferometer.store.folder import new_folder, point_latest, write_summary
from inferometer.store.reading import read, written
from inferometer.store.writing import write

__all__ = ["new_folder", "point_latest", "read", "write", "write_summary", "written"]
