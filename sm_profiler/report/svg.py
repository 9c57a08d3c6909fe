"""Build SVG from elements; every text and attribute is escaped."""

from __future__ import annotations

from functools import cache

from markupsafe import Markup, escape

# XML allows no control characters but tab, newline and carriage return
_REMOVED = {code: None for code in (*range(32), 127) if code not in (9, 10, 13)} | {0xFFFE: None, 0xFFFF: None}
# with these, a name would be shown in another order than it has: fdp.exe as exe.pdf
_REMOVED |= dict.fromkeys((*range(0x202A, 0x202F), *range(0x2066, 0x206A)))


def element(tag: str, *children: Markup | str, **attributes: object) -> Markup:
    """Return an element; `class_` becomes `class`, other underscores become hyphens, and None omits an attribute."""
    # plain strings: those of Markup.format take a tenth of a report's time
    written = "".join([
        f' {_name(key)}="{escape(_value(value))}"' for key, value in attributes.items() if value is not None
    ])  # fmt: skip
    inner = "".join([child if isinstance(child, Markup) else escape(clean(child)) for child in children])
    return Markup(f"<{tag}{written}>{inner}</{tag}>")  # noqa: S704 - our own file, or escaped above


def clean(text: str) -> str:
    """Remove the characters that XML and HTML forbid, and those that reverse the order of others."""
    return text.translate(_REMOVED).encode("utf-8", "replace").decode("utf-8")


def shorten(text: str, limit: int = 60) -> str:
    """Replace the middle of a long text by an ellipsis."""
    text = clean(text)
    return text if len(text) <= limit else f"{text[: limit // 2]}…{text[-(limit // 2 - 1) :]}"


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
