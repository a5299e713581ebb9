"""Text generation with continuous batching: decoder.py computes, engine.py schedules, model.py has the front ends."""
