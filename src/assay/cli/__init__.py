"""The command line: one verb a file, thin: parse, call, print, exit code."""
