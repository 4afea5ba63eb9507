"""The command line: one file a command, and the only floor that imports `converters`."""
