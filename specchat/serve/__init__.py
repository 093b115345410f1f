"""An HTTP server that speaks OpenAI's and Anthropic's APIs, over one engine process."""
