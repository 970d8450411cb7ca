"""The command line: it parses options, calls `modyn.client` and prints."""
