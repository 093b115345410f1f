"""Text in terminal cells: measuring, wrapping, numbers, ASCII, Markdown blocks."""
