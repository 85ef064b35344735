"""Games in the terminal: play, and the shop in a browser."""
