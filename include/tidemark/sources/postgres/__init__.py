"""The source that captures changes from PostgreSQL.

A capture reads a logical replication slot into change files. Transactions are bound to these files. The extra
`postgres`.
"""

from tidemark.core.errors import require

require("postgres")
