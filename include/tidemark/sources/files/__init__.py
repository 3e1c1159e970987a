"""Files that land in a folder, as a source."""
