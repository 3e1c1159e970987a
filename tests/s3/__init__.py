"""Tables and landing files on an S3 server."""
