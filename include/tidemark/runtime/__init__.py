"""What Spark needs on a machine: a Java, jars, and the folder that they are kept in."""
