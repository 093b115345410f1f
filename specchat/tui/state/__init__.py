"""What the app knows; imports no Textual."""
