"""Text generation with continuous batching: decoder.py computes, engine.py schedules and makes text of tokens,
generation.py is one text, model.py has the front ends."""
