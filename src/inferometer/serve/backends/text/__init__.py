"""Text generation with continuous batching: decoder.py computes, engine.py schedules and makes text of tokens, model.py
has the front ends and the state of one text."""
