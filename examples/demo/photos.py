"""Photos as JPEG files, which the demo's trainings decode and augment."""

import io
import random

import numpy as np
from PIL import Image, ImageEnhance

CLASSES = 10
FILES = 200  # different photos
PHOTO = (320, 240)
INPUT = (32, 32)


def jpeg_file(number: int) -> bytes:
    """Make a photo as a JPEG file: clouds in the colour of its class."""
    generator = np.random.default_rng(number)
    colour = np.array([number % CLASSES * 25, 128, 255 - number % CLASSES * 25])
    clouds = generator.integers(0, 128, (12, 16, 3)) + colour // 2
    photo = Image.fromarray(clouds.astype(np.uint8)).resize(PHOTO, Image.Resampling.BICUBIC)
    file = io.BytesIO()
    photo.save(file, "JPEG", quality=90)
    return file.getvalue()


def load(file: bytes) -> np.ndarray:
    """Decode and augment a photo."""
    return np.array(augment(Image.open(io.BytesIO(file)).convert("RGB")))


def augment(photo: Image.Image) -> Image.Image:
    """Turn a photo a little, vary its colours, cut out a part, and mirror half of the photos."""
    photo = photo.rotate(random.uniform(-10, 10), Image.Resampling.BILINEAR)
    photo = ImageEnhance.Brightness(photo).enhance(random.uniform(0.8, 1.2))
    left, top = random.randrange(PHOTO[0] // 4), random.randrange(PHOTO[1] // 4)
    photo = photo.resize(INPUT, box=(left, top, left + PHOTO[0] * 3 // 4, top + PHOTO[1] * 3 // 4))
    return photo.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if random.random() < 0.5 else photo
