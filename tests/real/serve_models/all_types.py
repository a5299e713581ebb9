"""OUT_TYPE is IN_TYPE, for each one that is given."""


def infer(inputs, parameters):
    return {name.replace("IN_", "OUT_"): given for name, given in inputs.items()}
