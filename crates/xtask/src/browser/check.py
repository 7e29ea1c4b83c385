"""What a person does with `skiff app` in a browser, in a real one without a window: logs in to a notebook and runs a cell, and looks at a
desktop. Run as an ordinary user.

    check.py SKIFF OUT      leaves notebook.png and desktop.png in OUT; the exit code says whether all was as it should be
"""

import getpass
import json
import subprocess
import sys
import urllib.parse

from selenium import webdriver
from selenium.common.exceptions import WebDriverException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

PATIENCE = 90


class App:
    """One that is served as long as this is entered."""

    def __init__(self, skiff, *words):
        # The browser is on the same host: no ssh between.
        self.words = [skiff, "app", words[0], "--tcp", *words[1:]]

    def __enter__(self):
        self.process = subprocess.Popen(self.words, stdout=subprocess.PIPE, text=True)
        said = json.JSONDecoder()
        text = ""
        while True:
            line = self.process.stdout.readline()
            if not line:
                sys.exit(f"{' '.join(self.words)}: said only {text!r}")
            text += line
            try:
                told = said.decode(text)
                break
            except ValueError:
                continue
        self.url = told["url"]
        self.base = self.url[: self.url.index("/", len("http://"))]
        # noVNC's is inside of a path that is quoted itself.
        self.token = urllib.parse.unquote(self.url).split("token=")[1].split("&")[0]
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(timeout=PATIENCE)


def browser():
    options = webdriver.ChromeOptions()
    for option in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1400,1000"):
        options.add_argument(option)
    return webdriver.Chrome(service=Service("/usr/bin/chromedriver"), options=options)


def until(driver, what, condition):
    """Waits for a condition; gives what it gives."""

    def holds(driver):
        try:
            return condition(driver)
        except WebDriverException:
            # What it looks at is not there yet.
            return False

    return WebDriverWait(driver, PATIENCE, 0.1).until(holds, f"never: {what}")


def notebook(driver, skiff, out):
    with App(skiff, "notebook", "--json") as app:
        driver.get(f"{app.base}/tree")
        password = until(driver, "it asks who is there", lambda d: d.find_element(By.ID, "password_input"))
        password.send_keys("guessed" + Keys.ENTER)
        until(driver, "a wrong token is refused", lambda d: "Invalid" in d.find_element(By.TAG_NAME, "body").text)
        driver.find_element(By.ID, "password_input").send_keys(app.token + Keys.ENTER)
        until(driver, "it lets in who has the token", lambda d: d.find_element(By.ID, "new-dropdown-button").is_displayed())
        driver.find_element(By.ID, "new-dropdown-button").click()
        until(driver, "a kernel to choose", lambda d: d.find_element(By.CSS_SELECTOR, "#kernel-python3 a")).click()
        until(driver, "a window of the notebook's", lambda d: len(d.window_handles) == 2)
        driver.switch_to.window(driver.window_handles[1])
        until(driver, "its kernel is idle", lambda d: d.find_element(By.CSS_SELECTOR, "#kernel_indicator_icon.kernel_idle_icon"))
        cell = until(driver, "a cell", lambda d: d.find_element(By.CSS_SELECTOR, ".code_cell .CodeMirror"))
        cell.click()
        keys = webdriver.ActionChains(driver).send_keys("import getpass; print(getpass.getuser(), 6 * 7)")
        keys.key_down(Keys.SHIFT).send_keys(Keys.ENTER).key_up(Keys.SHIFT).perform()
        said = until(driver, "what the cell prints", lambda d: d.find_element(By.CSS_SELECTOR, ".output_stdout").text.strip())
        driver.save_screenshot(f"{out}/notebook.png")
        print(f"notebook: the cell says {said!r}")
        if said != f"{getpass.getuser()} 42":
            sys.exit("notebook: that is wrong")


# How many pixels of the desktop are how red, green and blue.
COLOURS = """
const canvas = document.querySelector("canvas"), count = {};
if (!canvas || !canvas.width) return null;
const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
for (let at = 0; at < pixels.length; at += 4) {
    const colour = pixels.slice(at, at + 3).join(" ");
    count[colour] = (count[colour] || 0) + 1;
}
return {size: [canvas.width, canvas.height], count: count};
"""
TEAL = "0 128 128"


def desktop(driver, skiff, out):
    with App(skiff, "desktop", "--json", "--", "xterm", "-geometry", "80x24+0+0", "-bg", "#008080", "-e", "cat") as app:
        driver.get(app.url)

        def drawn(driver):
            seen = driver.execute_script(COLOURS)
            return seen if seen and seen["count"].get(TEAL, 0) > 10000 else None

        seen = until(driver, "the window's colour on the desktop", drawn)
        driver.save_screenshot(f"{out}/desktop.png")
        print(f"desktop: {seen['size']}, {seen['count'][TEAL]} pixels of the window's colour")


def main(skiff, out):
    driver = browser()
    try:
        notebook(driver, skiff, out)
        desktop(driver, skiff, out)
    finally:
        driver.quit()


main(*sys.argv[1:])
