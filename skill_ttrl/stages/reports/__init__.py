"""Reports: HTML pages, baselines, and views of runs, banks and files."""
