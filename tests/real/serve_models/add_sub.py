"""OUTPUT0 is INPUT0 + INPUT1, and OUTPUT1 is INPUT0 - INPUT1."""


def infer(inputs, parameters):
    left, right = inputs["INPUT0"], inputs["INPUT1"]
    return {"OUTPUT0": left + right, "OUTPUT1": left - right}
