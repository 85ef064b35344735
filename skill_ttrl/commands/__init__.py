"""The commands in Python, one module each; the command line parses its options and calls them."""
