"""Durable tables on delta-rs: small Delta commits without a JVM."""
