"""vLLM servers: dispatch, weight transfer, supervision."""
