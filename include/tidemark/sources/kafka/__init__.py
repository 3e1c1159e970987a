"""Kafka topics, as a source."""
