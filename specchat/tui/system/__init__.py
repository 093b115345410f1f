"""The machine around the app: clipboard, editor, processes, processor time."""
