"""How commands show results: tables, live views, JSON."""
