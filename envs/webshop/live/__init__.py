"""WebShop on a running server."""
