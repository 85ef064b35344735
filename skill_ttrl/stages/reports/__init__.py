"""Reports: summaries of runs, comparisons, baselines, and HTML pages."""
