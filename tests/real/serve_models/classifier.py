"""The score of class k is the sum of the image's k-th 19 numbers."""

CLASSES, PART = 10, 19


def infer(inputs, parameters):
    images = inputs["IMAGE"]
    parts = images.reshape(len(images), -1)[:, : CLASSES * PART].reshape(len(images), CLASSES, PART)
    return {"SCORES": parts.sum(axis=2)}
