"""The generated WebShop catalogue."""
