"""Adapters: one module per engine; nothing else knows any engine."""
