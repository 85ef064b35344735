"""WebShop as a web site."""
