"""Sleeps for DELAY_MS and returns it."""

import time


def infer(inputs, parameters):
    time.sleep(int(inputs["DELAY_MS"][0]) / 1000)
    return {"SLEPT_MS": inputs["DELAY_MS"]}
