"""Files of other projects, which are not part of the repository: further evidence, for those who have them in ../shared.

Everything that is tested with them is also tested with files of our own, in the same formats.
"""

from pathlib import Path

import pytest

SHARED = Path(__file__).parents[2] / "shared"
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="the files of other projects are not in ../shared")
