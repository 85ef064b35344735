"""Recipes, one YAML file each. `skillttrl configs` shows them."""
