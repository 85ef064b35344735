"""Recipes, one YAML file each. `skillttrl configs list` shows them."""
