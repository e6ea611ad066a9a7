"""Statistics that know nothing of models: tables, exact tests, effect sizes and certificates."""
