"""Build SVG from elements; every text and attribute is escaped."""

from __future__ import annotations

from functools import cache

from markupsafe import Markup, escape

from sm_profiler.formatting import clean


def element(tag: str, *children: Markup | str, **attributes: object) -> Markup:
    """Return an element; `class_` becomes `class`, other underscores become hyphens, and None omits an attribute."""
    # plain strings: those of Markup.format take a tenth of a report's time
    written = "".join([
        f' {_name(key)}="{escape(_value(value))}"' for key, value in attributes.items() if value is not None
    ])  # fmt: skip
    inner = "".join([child if isinstance(child, Markup) else escape(clean(child)) for child in children])
    return Markup(f"<{tag}{written}>{inner}</{tag}>")  # noqa: S704 - our own file, or escaped above


def drawing(
    width: float, height: float, title: str, *children: Markup, kind: str = "chart", keep: bool = True
) -> Markup:
    """Return a whole picture; screen readers read its title."""
    return element(
        "svg", element("title", title), *children,
        viewBox=f"0 0 {_value(width)} {_value(height)}", role="img", class_=kind,
        aria_label=title, preserveAspectRatio=None if keep else "none",
    )  # fmt: skip


def text(x: float, y: float, content: str, *, kind: str = "", anchor: str | None = None) -> Markup:
    """Return a line of text; anchor: start, middle or end."""
    return element("text", content, x=x, y=y, class_=kind or None, text_anchor=anchor)


@cache
def _name(key: str) -> str:
    if key in ("viewBox", "preserveAspectRatio"):
        return key
    return key.rstrip("_").replace("_", "-")


def _value(value: object) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else clean(str(value))
