"""Pages of `lms3d.scoring.page`, opened and clicked through in a real browser without a window."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import pytest

BROWSERS = ("chromium-headless-shell", "chromium", "google-chrome", "chrome")

_CLICKS = """
<pre id="clicked"></pre><script>
const said = {tabs: [], errors: []};
addEventListener('error', event => said.errors.push(String(event.message)));
const hit = element => {  // as a mouse would: what lies at its middle is the element itself
  element.scrollIntoView({block: 'center'});
  const box = element.getBoundingClientRect();
  const there = document.elementFromPoint(box.left + box.width / 2, box.top + box.height / 2);
  if (there !== element) said.errors.push('hidden: ' + element.textContent);
  there.dispatchEvent(new MouseEvent('click', {bubbles: true}));
};
for (const tab of document.querySelectorAll('nav button')) {
  hit(tab);
  const open = [...document.querySelectorAll('section')].filter(one => one.offsetHeight > 0);
  said.tabs.push([tab.textContent, open.map(one => one.querySelector('h2').textContent), tab.getAttribute('aria-selected'),
    [...open[0].querySelectorAll('img')].map(one => one.naturalWidth > 100)]);
}
hit(document.querySelector('nav button'));
MORE
document.getElementById('clicked').textContent = JSON.stringify(said);
</script></body>"""


def found() -> str:
    """A Chromium; under LMS3D_CI its absence is a failure, for .ci/run installs one."""
    path = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if path is None:
        told = "no Chromium found; `apt-get install chromium-headless-shell` installs one"
        (pytest.fail if os.environ.get("LMS3D_CI") else pytest.skip)(told)
    return path


def clicked(browser: str, path: Path, folder: Path, more: str = "") -> dict[str, Any]:
    """What a click on each tab of a copy of the page shows.

    "tabs": its name, titles of the open sections, whether it is chosen, and of each figure whether it is there; "errors": what went
    wrong. more: JavaScript that adds to `said` then.
    """
    copy = folder / "clicked.html"
    copy.write_text(path.read_text().replace("</body>", _CLICKS.replace("MORE", more)))
    command = [
        browser,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--window-size=1600,1000",
        f"--user-data-dir={folder / 'profile'}",
    ]
    done = subprocess.run(
        [*command, "--dump-dom", copy.as_uri()], capture_output=True, text=True, timeout=120, check=True
    )
    text = re.search(r'<pre id="clicked">(.*?)</pre>', done.stdout, re.DOTALL)
    assert text, done.stderr[-2000:]
    return json.loads(unescape(text[1]))
