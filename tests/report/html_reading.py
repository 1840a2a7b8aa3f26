"""Reads a page: its tables, texts, attributes, and whether every tag is closed."""

from __future__ import annotations

from html.parser import HTMLParser

_VOID = {"meta", "link", "br", "hr", "img", "input"}


class Page(HTMLParser):
    """`tables`: rows of fields by the heading or summary before each; `texts`, `tags` and `attributes` of all."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tables: dict[str, list[list[str]]] = {}
        self.texts: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.open: list[str] = []
        self._title = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes.extend((tag, name, value or "") for name, value in attrs)
        if tag in _VOID:
            return
        self.open.append(tag)
        if tag in ("h3", "summary"):
            self._title = ""
        if tag == "table":
            self.tables[self._title.strip()] = []
        if tag == "tr":
            self.tables[self._title.strip()].append([])
        if tag in ("td", "th"):
            self.tables[self._title.strip()][-1].append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes.extend((tag, name, value or "") for name, value in attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> without a start"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "style":
            return
        self.texts.append(data)
        if self.open and self.open[-1] in ("h3", "summary"):
            self._title += data
        if "table" in self.open and ("td" in self.open or "th" in self.open) and "svg" not in self.open:
            self.tables[self._title.strip()][-1][-1] += data

    def columns(self, title: str) -> list[dict[str, str]]:
        """The rows of a table by their columns' names, spaces made plain."""
        head, *rows = [[field.replace("\u00a0", " ") for field in row] for row in self.tables[title]]
        return [dict(zip(head, row, strict=True)) for row in rows]

    @property
    def text(self) -> str:
        """All text, spaces made plain."""
        return " ".join("".join(self.texts).replace("\u00a0", " ").split())
