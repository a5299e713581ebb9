"""OUTPUT0 is INPUT0."""


def infer(inputs, parameters):
    return {"OUTPUT0": inputs["INPUT0"]}
