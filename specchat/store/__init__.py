"""Chats that outlive the program: one SQLite file, written by a thread of its own."""
