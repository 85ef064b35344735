"""Reports: summaries of runs, comparisons, and an HTML page."""
