"""Side effects without widgets: kept chats, settings files, the list of pairs, the terminal's window."""
