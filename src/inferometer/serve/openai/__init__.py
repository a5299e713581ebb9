"""The OpenAI endpoints, with Anthropic's Messages API and vLLM's /tokenize, for every text model of the server.

model     what a text model offers, one generation, stop texts       requests  parsing and checking requests
routes    paths, the choice of the model, one request to it          response  the JSON and the bytes of responses
"""
