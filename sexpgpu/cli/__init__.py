"""The command line: one file per command; parsing, progress, exit codes."""
