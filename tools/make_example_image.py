"""Draw examples/shapes.jpg: a few coloured shapes, small enough for a repository and free of anyone's rights.

python tools/make_example_image.py          (needs Pillow: pip install 'inferometer[image]')
"""

from pathlib import Path

from PIL import Image, ImageDraw

IMAGE = Path(__file__).parents[1] / "examples" / "shapes.jpg"
SIZE = 224


def draw() -> Image.Image:
    """Return the picture: a sun, a house and a tree on a meadow."""
    image = Image.new("RGB", (SIZE, SIZE), "#bfe3f7")
    pen = ImageDraw.Draw(image)
    pen.rectangle((0, 150, SIZE, SIZE), fill="#7fb85f")
    pen.ellipse((160, 18, 204, 62), fill="#f6c945")
    pen.rectangle((40, 104, 118, 176), fill="#d9694f")
    pen.polygon([(30, 104), (79, 62), (128, 104)], fill="#7a3b2e")
    pen.rectangle((68, 134, 90, 176), fill="#f4e9d8")
    pen.rectangle((162, 128, 174, 182), fill="#7a5230")
    pen.ellipse((138, 82, 198, 142), fill="#3f7d3a")
    return image


if __name__ == "__main__":
    draw().save(IMAGE, quality=85, optimize=True)
    print(f"{IMAGE}: {IMAGE.stat().st_size} bytes")
