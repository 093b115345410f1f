"""The questions that an empty chat offers: each asks for another kind of text."""

QUESTIONS = (
    "Write a short poem about the sea.",
    "List five things for a rainy day.",
    "Count a text's words in Python.",
)
