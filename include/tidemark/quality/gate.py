"""The gate's quality side in one place: what is checked, and what comes of it.

- `check_digests`: the verdict on what was written or replayed, documented by Great Expectations.
- `check_rows`: the user's own expectations on the staged rows.
- `opinion_of`: what the checks ask of the gate.

Great Expectations takes seconds to import and is imported by the first call, not by this module.
"""

from tidemark.quality.digests import check_digests
from tidemark.quality.report import Checked, opinion_of
from tidemark.quality.rows import check_rows

__all__ = ["Checked", "check_digests", "check_rows", "opinion_of"]
