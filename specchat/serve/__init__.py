"""An HTTP server that speaks OpenAI's API, over one engine process."""
