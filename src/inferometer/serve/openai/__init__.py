"""The OpenAI endpoints, with Anthropic's Messages API and vLLM's /tokenize, for every text model of the server."""
