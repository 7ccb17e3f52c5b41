"""A real Prometheus with the alerts of packaging/prometheus, for tests in which they fire, and the dashboard of
packaging/grafana."""

import json
import re
import subprocess
import urllib.error
import urllib.parse
import urllib.request

import lab

RULES = lab.LAB.parent / "packaging/prometheus/spillway.rules.yml"
DASHBOARD = lab.LAB.parent / "packaging/grafana/spillway.json"
TOOLS = lab.LAB / "cache/prometheus/usr/bin"
# What the alerts wait for is minutes. Here it is seconds.
SECONDS = {"5m": "5s", "10m": "5s", "15m": "5s", "30m": "5s"}


def promtool(*arguments, **options):
    done = subprocess.run([TOOLS / "promtool", *arguments], capture_output=True, text=True, timeout=300, **options)
    if done.returncode != 0:
        lab.fail(f"promtool {arguments}: {done.stdout}{done.stderr}")
    return done.stdout + done.stderr


class Prometheus:
    """Reads a daemon each second at its TCP port, and fires what is so for a second. With the file of an authority it
    reads over https, by the job of packaging/prometheus."""

    def __init__(self, port, token, authority=None):
        short = RULES.read_text()
        for minutes, seconds in SECONDS.items():
            short = short.replace(f"[{minutes}]", f"[{seconds}]")
        (lab.WORK / "short.yml").write_text(re.sub(r"for: \d+[ms]", "for: 1s", short))
        job = f"""
rule_files: [short.yml]
scrape_configs:
  - job_name: spillway
    authorization: {{credentials_file: {token}}}
    static_configs: [{{targets: ["127.0.0.1:{port}"]}}]
"""
        if authority:
            job = RULES.with_name("prometheus.yml").read_text()
            for theirs, ours in {"spillway.rules.yml": "short.yml", "/etc/prometheus/spillway-ca.pem": str(authority),
                                 "/etc/prometheus/spillway-token": str(token), "192.0.2.1:8431": f"127.0.0.1:{port}"}.items():
                if theirs not in job:
                    lab.fail(f"packaging/prometheus/prometheus.yml has no {theirs}")
                job = job.replace(theirs, ours)
        (lab.WORK / "prometheus.yml").write_text(f"global: {{scrape_interval: 1s, evaluation_interval: 1s}}\n{job}")
        self.port = lab.free_port()
        with open(lab.WORK / "prometheus.log", "w") as log:
            lab.start([TOOLS / "prometheus", f"--config.file={lab.WORK}/prometheus.yml", f"--storage.tsdb.path={lab.WORK}/tsdb",
                       f"--web.listen-address=127.0.0.1:{self.port}"], stdout=log, stderr=log)
        lab.until(self._scraped, "Prometheus to read the daemon")

    def _ask(self, path):
        try:
            return json.loads(urllib.request.urlopen(f"http://127.0.0.1:{self.port}/api/v1/{path}", timeout=10).read())["data"]
        except OSError:
            return None

    def _scraped(self):
        answer = self._ask("query?query=up")
        return answer and [sample["value"][1] for sample in answer["result"]] == ["1"]

    def scrapes(self):
        """How often it has read the daemon since this was called first."""
        answer = self._ask("query?query=count_over_time(up[1h])")
        count = int(answer["result"][0]["value"][1]) if answer and answer["result"] else 0
        self.first = getattr(self, "first", count)
        return count - self.first if self._scraped() else 0

    def query(self, expression):
        """The samples of an expression. Fails if Prometheus does not understand it."""
        query = urllib.parse.urlencode({"query": expression})
        try:
            answer = urllib.request.urlopen(f"http://127.0.0.1:{self.port}/api/v1/query?{query}", timeout=10).read()
        except urllib.error.HTTPError as error:
            lab.fail(f"{expression}: {error.read().decode()}")
        return json.loads(answer)["data"]["result"]

    def firing(self):
        """The alerts that fire: labels and texts of each."""
        answer = self._ask("alerts") or {"alerts": []}
        fired = [alert for alert in answer["alerts"] if alert["state"] == "firing"]
        if any("error expanding" in text for alert in fired for text in alert["annotations"].values()):
            lab.fail(f"a text that can't be expanded: {fired}")
        return fired

    def fires(self, name, **labels):
        """The alert of this name that fires, with these labels among its own; None if there is none."""
        return next((alert for alert in self.firing()
                     if labels.items() | {"alertname": name}.items() <= alert["labels"].items()), None)
