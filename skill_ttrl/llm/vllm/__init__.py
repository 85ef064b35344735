"""vLLM in this process: engine, requests, weight updates, log-prob probe."""
