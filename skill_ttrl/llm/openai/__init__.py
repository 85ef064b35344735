"""Endpoints that speak OpenAI's protocol: client, retries, structured replies, cost ledger, cache of answers."""
