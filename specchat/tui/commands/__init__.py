"""Slash commands: the table, and one file for each group of them."""
