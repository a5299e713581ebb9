"""Text generation with continuous batching: decoder.py computes, engine.py schedules and makes text of tokens, model.py
has its front ends."""
