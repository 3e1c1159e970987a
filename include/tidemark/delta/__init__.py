"""The control plane on delta-rs: small Delta commits, made without a JVM."""
