"""Stores on disk that several rooms share: SQLite databases with one writer, schema versions and rules for damage."""
