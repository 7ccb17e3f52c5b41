"""Certificates for hosts of a test."""

import subprocess

import lab


class Authority:
    """Signs certificates."""

    def __init__(self, name):
        self.key, self.certificate = lab.WORK / f"{name}.key", lab.WORK / f"{name}.pem"
        openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
                "-subj", f"/CN={name}", "-keyout", self.key, "-out", self.certificate)

    def sign(self, name, folder, *others):
        """Puts a key, its certificate and the authority's into a folder: key.pem, cert.pem, ca.pem. Other names and
        addresses are as IP:127.0.0.1."""
        request, extension = folder / "request.pem", folder / "extension"
        openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", f"/CN={name}",
                "-keyout", folder / "key.pem", "-out", request)
        extension.write_text(f"subjectAltName={','.join([f'DNS:{name}', *others])}\n")
        openssl("x509", "-req", "-in", request, "-CA", self.certificate, "-CAkey", self.key, "-days", "2",
                "-CAcreateserial", "-extfile", extension, "-out", folder / "cert.pem")
        (folder / "ca.pem").write_text(self.certificate.read_text())


def openssl(*arguments):
    done = subprocess.run(["openssl", *map(str, arguments)], capture_output=True, text=True, timeout=60)
    if done.returncode != 0:
        lab.fail(f"openssl {arguments}: {done.stderr}")
