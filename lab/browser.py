"""A headless Chromium for tests, driven by the Chrome DevTools protocol over a pair of pipes."""

import base64
import json
import os
import shutil

import lab

KEYS = {"Tab": (9, ""), "Enter": (13, "\r"), "Escape": (27, ""), " ": (32, " "), "ArrowLeft": (37, ""), "ArrowUp": (38, ""),
        "ArrowRight": (39, ""), "ArrowDown": (40, ""), "Home": (36, ""), "End": (35, "")}


class Browser:
    """One tab. What goes wrong on its page, and what it loads, is noted."""

    def __init__(self, width=1280, height=900):
        program = shutil.which("chromium") or lab.fail("no chromium: lab/setup test")
        out, self._write = os.pipe()
        self._read, into = os.pipe()
        # The protocol's ends are descriptors 3 and 4 of the browser.
        line = f'exec "$@" 3<&{out} 4>&{into}'
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
                 "--no-first-run", "--disable-component-update", "--disable-background-networking",
                 f"--user-data-dir={lab.WORK / 'browser'}", "--remote-debugging-pipe", f"--window-size={width},{height}"]
        lab.start(["bash", "-c", line, "bash", program, *flags, "about:blank"], pass_fds=(out, into),
                  stdout=open(lab.WORK / "browser.log", "w"), stderr=-2)
        os.close(out)
        os.close(into)
        self._buffer, self._number, self._session, self._answers = b"", 0, None, {}
        self.errors, self.requests, self.on_event = [], [], None
        tab = next(it for it in self.send("Target.getTargets")["targetInfos"] if it["type"] == "page")
        self._session = self.send("Target.attachToTarget", targetId=tab["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")
        self.size(width, height)

    def _message(self):
        while b"\0" not in self._buffer:
            part = os.read(self._read, 1 << 20)
            if not part:
                lab.fail(f"the browser ended: {(lab.WORK / 'browser.log').read_text()}")
            self._buffer += part
        text, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(text)

    def send(self, method, **parameters):
        """Asks for something; its answer. Events that come before it are noted."""
        self._number += 1
        number = self._number
        message = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        # A watcher of events may ask, too, before this is answered.
        while number not in self._answers:
            message = self._message()
            if "id" in message:
                self._answers[message["id"]] = message
            else:
                self._note(message["method"], message["params"])
        answer = self._answers.pop(number)
        if "error" in answer:
            lab.fail(f"{method}: {answer['error']}")
        return answer["result"]

    def _note(self, method, parameters):
        if method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(parameters["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
            self.errors.append(json.dumps(parameters["args"]))
        elif method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.errors.append(f"{parameters['entry']['text']} {parameters['entry'].get('url', '')}")
        elif self.on_event:
            self.on_event(method, parameters)

    def open(self, url):
        self.send("Page.navigate", url=url)
        self.until("document.readyState == 'complete'", "the page to load")

    def value(self, expression):
        """What an expression in the page gives."""
        answer = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            lab.fail(f"{expression}: {answer['exceptionDetails']['exception']['description']}")
        return answer["result"].get("value")

    def until(self, expression, what, seconds=15):
        return lab.until(lambda: self.value(expression), what, seconds)

    def key(self, name, shift=False):
        """Presses one key."""
        code, text = KEYS.get(name, (ord(name[0].upper()), name))
        pressed = {"key": name, "windowsVirtualKeyCode": code, "modifiers": 8 if shift else 0}
        self.send("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", text=text, **pressed)
        self.send("Input.dispatchKeyEvent", type="keyUp", **pressed)

    def point(self, x, y):
        """Moves the mouse."""
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def type(self, text):
        self.send("Input.insertText", text=text)

    def size(self, width, height):
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def prefer(self, **features):
        """Media features such as prefers_color_scheme="dark"."""
        listed = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        self.send("Emulation.setEmulatedMedia", features=listed)

    def picture(self, path, whole=True):
        if whole:
            self.value("scrollTo(0, 0)")
        shot = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))
