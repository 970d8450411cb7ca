"""The command line: a face, with no logic of its own."""
