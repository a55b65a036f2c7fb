"""Looking at runs: what their folders hold, as a page, as tables, and compared with each other."""
