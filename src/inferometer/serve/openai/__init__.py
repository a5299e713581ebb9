"""The OpenAI endpoints, with Anthropic's Messages API and vLLM's /tokenize, for every text model of the server.

routes    paths, the choice of the model, one request to it
requests  parsing and checking requests
response  the JSON and the bytes of responses
"""
