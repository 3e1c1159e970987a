"""The source that reads Kafka topics."""
