"""The OpenAI endpoints, with Anthropic's Messages API and vLLM's /tokenize, for every text model of the server.

model      what a text model offers, and one generation        frames     the JSON of events and bodies, per API
requests   parsing and checking requests                       response   one response in progress
stops      cutting a text at its stop texts                    routes     paths, the choice of the model, errors
generated  from a request to a generation of a real model
"""
