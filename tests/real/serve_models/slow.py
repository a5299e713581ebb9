"""Sleeps for DELAY_MS and gives it back."""

import time


def infer(inputs, parameters):
    time.sleep(int(inputs["DELAY_MS"][0]) / 1000)
    return {"SLEPT_MS": inputs["DELAY_MS"]}
