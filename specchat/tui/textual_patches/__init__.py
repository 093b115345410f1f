"""Every use of Textual's private parts."""
