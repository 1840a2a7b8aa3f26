"""The page in a real browser, where Chromium is installed: it shows, fits a phone, and complains of nothing."""

import html
import re
import shutil
import subprocess

import pytest
from html_reading import Page
from report_records import made, many

from farflung.report.digest import Failure
from farflung.report.page import render

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")

_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--enable-logging=stderr",
    "--window-size=1280,900",
)


def shown(page, profile, *flags: str) -> str:
    """The document after the browser has read and laid out the file `page`; no message on its console."""
    assert CHROMIUM is not None
    command = [CHROMIUM, *_FLAGS, f"--user-data-dir={profile}", *flags, "--dump-dom", page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "CONSOLE" not in done.stderr
    return done.stdout


_MEASURE = """<!DOCTYPE html><body style="margin:0">
<iframe srcdoc="{page}" style="border:0;width:{width}px;height:800px"></iframe><pre></pre>
<script>addEventListener("load", () => {{
  const inner = document.querySelector("iframe").contentDocument, root = inner.documentElement;
  const outside = [...inner.querySelectorAll("body *")].filter(e => !e.closest(".scroll *") &&
    e.getBoundingClientRect().right > {width} + 0.5).map(e => e.tagName);
  const small = [...inner.querySelectorAll("figure > svg")].flatMap(s =>
    [...s.querySelectorAll("text")].map(t => parseFloat(t.style.fontSize) * s.getBoundingClientRect().width
      / s.viewBox.baseVal.width));
  document.querySelector("pre").textContent = JSON.stringify([root.scrollWidth, outside.length, Math.min(...small),
    inner.defaultView.getComputedStyle(inner.body).color]);
}})</script>"""


def measured(text: str, width: int, folder, *flags: str) -> tuple[float, int, float, str]:
    """Of the page in a window `width` wide: its width, elements that stick out, smallest letters of charts, colour."""
    page = folder / "measure.html"
    page.write_text(_MEASURE.format(page=html.escape(text), width=width), encoding="utf-8")
    found = re.search(r"<pre>\[(\d+),(\d+),([\d.]+),\"(.*?)\"\]</pre>", shown(page, folder / "profile", *flags))
    assert found is not None
    return int(found[1]), int(found[2]), float(found[3]), found[4]


def test_it_shows_the_numbers_of_the_runs_without_a_complaint(tmp_path):
    page = tmp_path / "report.html"
    text = render([made("retexo", seed) for seed in range(2)], failed=[Failure("llcg<b>", 0, "broken")])
    page.write_text(text, encoding="utf-8")
    dom = Page(re.sub(r"^.*?<html", "<html", shown(page, tmp_path / "profile"), flags=re.DOTALL))
    assert dom.columns("Summary") == Page(text).columns("Summary")
    assert dom.columns("Summary")[0]["training bytes"] == "40 kB"
    assert dom.columns("Failed")[0]["method"] == "llcg<b>"
    assert len(dom.columns("Runs")) == 2


@pytest.mark.parametrize("width", [360, 390])
def test_it_fits_a_phone_with_readable_charts(width, tmp_path):
    scroll, outside, letters, _ = measured(render(many(methods=9, seeds=2, rounds=30)), width, tmp_path)
    assert scroll == width
    assert outside == 0
    assert letters >= 9


def test_it_is_dark_where_that_is_preferred(tmp_path):
    text = render([made("retexo")])
    light = measured(text, 1000, tmp_path, "--blink-settings=preferredColorScheme=1")
    dark = measured(text, 1000, tmp_path, "--blink-settings=preferredColorScheme=0")
    assert (light[3], dark[3]) == ("rgb(27, 36, 48)", "rgb(230, 235, 241)")
    assert light[0] == dark[0] == 1000
