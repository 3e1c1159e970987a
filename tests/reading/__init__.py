"""Reading shards."""
