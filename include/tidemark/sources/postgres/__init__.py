"""Change capture from PostgreSQL: a logical slot into change files, which transactions are bound to.

The extra `postgres`.
"""

from tidemark.core.extras import require

require("postgres")
