"""WebShop's catalogue: products, search, and how it is kept on a machine."""
