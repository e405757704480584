"""JupyterLab in a headless Chromium runs every notebook from the first cell to the last."""

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from browser import CHROMIUM, browser
from playwright.sync_api import Browser, Page

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
LONG = (
    "02_tamu_scaling",
    "03_argonne_braggnn",
    "04_graphcore_mk2",
    "05_graphcore_results",
    "06_fidelity",
)
"""A minute and more each, and run by nbval too: in the browser only by `make test-slow`."""
SCREENS = ROOT / "build" / "screens"
START_SECONDS = 90
RUN_SECONDS = 300

__all__ = ["browser"]  # a fixture
pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine"),
]

# Off-screen cells must be in the page to be counted; nothing may be fetched from elsewhere.
SETTINGS = {
    "@jupyterlab/notebook-extension/tracker.jupyterlab-settings": {"windowingMode": "none"},
    "@jupyterlab/apputils-extension/notification.jupyterlab-settings": {
        "fetchNews": "false",
        "checkForUpdates": False,
    },
}
KERNEL_IDLE = """() => {
  const panel = window.jupyterapp?.shell?.currentWidget;
  return panel?.sessionContext?.session?.kernel?.status === 'idle' && panel.content.model;
}"""
# The page itself waits without end, for a lost kernel too.
RUN_ALL = """async (seconds) => {
  const run = async () => {
    await window.jupyterapp.commands.execute('notebook:run-all-cells');
    await window.jupyterapp.commands.execute('docmanager:save');
  };
  const late = new Promise((_, refuse) =>
    setTimeout(() => refuse(new Error(`cells still run after ${seconds} s`)), 1000 * seconds));
  await Promise.race([run(), late]);
}"""
COUNTS = """() => {
  const cells = window.jupyterapp.shell.currentWidget.content.model.cells;
  const counts = [];
  for (let i = 0; i < cells.length; i++) {
    const cell = cells.get(i);
    if (cell.type === 'code') counts.push(cell.executionCount);
  }
  return counts;
}"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lab:
    """A running JupyterLab server."""

    url: str
    token: str
    folder: Path

    def call(self, path: str, method: str = "GET", body: dict[str, Any] | None = None) -> Any:
        """Call the REST interface and return its JSON answer."""
        request = urllib.request.Request(
            f"{self.url}/api/{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"token {self.token}", "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            text = answer.read()
        return json.loads(text) if text else None


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A server on a copy of the notebooks, with settings of its own."""
    home = tmp_path_factory.mktemp("lab")
    folder = home / "notebooks"
    shutil.copytree(ROOT / "notebooks", folder, ignore=shutil.ignore_patterns(".ipynb_checkpoints"))
    for name, value in SETTINGS.items():
        file = home / "settings" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(value))
    variables = {
        "JUPYTER_CONFIG_DIR": "config",
        "JUPYTER_DATA_DIR": "data",
        "JUPYTER_RUNTIME_DIR": "runtime",
        "JUPYTERLAB_SETTINGS_DIR": "settings",
        "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
        "IPYTHONDIR": "ipython",
    }
    port, token = free_port(), secrets.token_hex(16)
    log = home / "server.log"
    with log.open("wb") as stream:
        server = subprocess.Popen(
            [
                sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root",
                "--ip=127.0.0.1", f"--port={port}", "--ServerApp.port_retries=0",
                f"--IdentityProvider.token={token}", f"--ServerApp.root_dir={folder}",
                "--LabApp.expose_app_in_browser=True", "--LabApp.extension_manager=readonly",
                "--LabApp.news_url=None",
            ],
            cwd=home,
            env=os.environ | {name: str(home / part) for name, part in variables.items()},
            stdout=stream,
            stderr=subprocess.STDOUT,
        )  # fmt: skip
    running = Lab(url=f"http://127.0.0.1:{port}", token=token, folder=folder)
    try:
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                running.call("status")
                break
            except (urllib.error.URLError, ConnectionError):
                if server.poll() is not None or time.monotonic() > deadline:
                    pytest.fail(f"JupyterLab did not start:\n{log.read_text()[-3000:]}")
                time.sleep(0.3)
        yield running
    finally:
        server.terminate()
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1400, "height": 1000})
    yield context.new_page()
    context.close()


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS


@pytest.mark.parametrize(
    "notebook",
    [
        pytest.param(path, id=path.stem, marks=[pytest.mark.slow] * (path.stem in LONG))
        for path in NOTEBOOKS
    ],
)
def test_every_cell_runs_in_the_browser(notebook: Path, lab: Lab, page: Page) -> None:
    outside: list[str] = []
    page.on("request", lambda call: None if "127.0.0.1" in call.url else outside.append(call.url))
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    # Made beforehand: a session that the page makes lazily can lose the first queued cells.
    session = lab.call(
        "sessions",
        "POST",
        {
            "path": notebook.name,
            "name": notebook.name,
            "type": "notebook",
            "kernel": {"name": "python3"},
        },
    )
    try:
        page.goto(f"{lab.url}/lab/tree/{notebook.name}?token={lab.token}")
        # Lab scrolls a long notebook to where it was left: its first cell need not be in view.
        page.wait_for_selector(
            ".jp-NotebookPanel .jp-Notebook .jp-Cell",
            state="attached",
            timeout=START_SECONDS * 1000,
        )
        page.wait_for_function(KERNEL_IDLE, timeout=START_SECONDS * 1000)
        page.set_default_timeout(RUN_SECONDS * 1000)
        SCREENS.mkdir(parents=True, exist_ok=True)
        try:
            page.evaluate(RUN_ALL, RUN_SECONDS)
        finally:
            # Of cells that still run, too: it shows which.
            page.screenshot(path=SCREENS / f"{notebook.stem}.png")
        counts = page.evaluate(COUNTS)
        pictures = page.locator(".jp-OutputArea-output :is(img, svg)").count()
        tables = page.locator(".jp-OutputArea-output table").count()
    finally:
        lab.call(f"sessions/{session['id']}", "DELETE")

    assert counts, "the notebook has no code cell"
    assert counts == list(range(1, len(counts) + 1))
    assert pictures >= 1
    assert tables >= 1
    remote = [url for url in outside if not url.startswith(("data:", "blob:", "about:"))]
    assert not remote
    assert not problems
    saved = lab.call(f"contents/{notebook.name}")["content"]["cells"]
    executed = [cell["execution_count"] for cell in saved if cell["cell_type"] == "code"]
    assert executed == counts
    outputs = [output for cell in saved for output in cell.get("outputs", [])]
    assert not [output for output in outputs if output["output_type"] == "error"]
