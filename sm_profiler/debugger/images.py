"""AWS's training images: whether the hook runs in the one of a job, by the image's name or by an Estimator's arguments."""

from __future__ import annotations

import re
import warnings
from typing import Any

import attrs

from sm_profiler.settings import AUTO

SUPPORTED = {"pytorch": ("PyTorch", (2, 4)), "tensorflow": ("TensorFlow", (2, 18))}  # from which version on
PYTHON = (3, 10)
# also of a copy in another registry: repository, version and Python
_IMAGE = re.compile(r"/(?:huggingface-)?(pytorch|tensorflow)-training:(\d+(?:\.\d+)+)-(?:\S*-)?py(\d{2,3})(?:-|\Z)")
_PYTHON = re.compile(r"(?:py)?(\d)\.?(\d*)\Z")


@attrs.frozen
class AwsImage:
    """One of AWS's training images.

    Attributes:
        framework: `pytorch`, `tensorflow`, or another one of the SDK's.
        version: version of the framework, such as `2.6.0`; "" if unknown.
        python: version of Python, such as `py312`; "" if unknown.
    """

    framework: str
    version: str = ""
    python: str = ""

    @classmethod
    def named(cls, uri: object) -> AwsImage | None:
        """Return the image of a URI; None if it is not AWS's, or that cannot be recognized."""
        found = _IMAGE.search(uri) if isinstance(uri, str) else None
        return cls(found[1], found[2], f"py{found[3]}") if found else None

    @classmethod
    def of_estimator(cls, estimator: Any) -> AwsImage | None:
        """Return the image that an Estimator of SDK v2 starts; None if it is not AWS's."""
        if uri := getattr(estimator, "image_uri", None):
            return cls.named(uri)
        framework = str(getattr(estimator, "_framework_name", ""))
        version = getattr(estimator, "framework_version", "")
        for name in SUPPORTED:  # of HuggingFace's images, which have either
            if own := getattr(estimator, f"{name}_version", None):
                framework, version = name, own
        return cls(framework, _text(version), _text(getattr(estimator, "py_version", "")))

    @property
    def too_old(self) -> str:
        """Versions that the hook does not support, each with the first that it does; "" if there are none."""
        title, least = SUPPORTED.get(self.framework, ("", ()))
        found = []
        if least and (version := tuple(int(part) for part in re.findall(r"\d+", self.version)[:2])) and version < least:
            found.append(f"{title} {self.version} (supported from {_dotted(least)} on)")
        if (parts := _PYTHON.match(self.python)) and (int(parts[1]), int(parts[2] or 0)) < PYTHON:
            found.append(f"Python {parts[1]}.{parts[2] or 'x'} (supported from {_dotted(PYTHON)} on)")
        return " and ".join(found)


def warn_of_old(image: AwsImage | None, stacklevel: int) -> None:
    """Warn if the hook does not support what an image has; the stack level is that of the caller's warnings."""
    if image is not None and image.too_old:
        warnings.warn(
            f"the job's image has {image.too_old}: the hook may record no steps there, or not be installed at all. Use a newer "
            "framework_version and py_version, or a newer image",
            stacklevel=stacklevel + 1,
        )


def is_on(switch: object) -> bool:
    """Return whether a job's SM_PROFILER_AUTO switches the hook on; a value that only a pipeline decides may."""
    return AUTO.usable({AUTO.name: switch}) is True if isinstance(switch, str) else switch is not None


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
