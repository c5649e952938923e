"""How fast it is, beside what Postgres itself can do here and now."""
