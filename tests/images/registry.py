"""Makes small images and pushes them to a registry, by the registry's own protocol.

    registry.py push SERVER/NAME:TAG LAYER... [--config JSON] [--arch ARCH]     each a directory or a tar file, the lowest first
    registry.py sign SERVER/NAME:TAG KEY DIGEST                               what cosign puts beside the image of that digest
"""

import argparse
import base64
import gzip
import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
import urllib.request

KIND = "application/vnd.oci.image"


def layer(path):
    """A tar file as it is; a directory as one: sorted, its root itself included, as `docker build` makes them."""
    if not os.path.isdir(path):
        with open(path, "rb") as file:
            return file.read()
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        tar.add(path, arcname=".", filter=lambda info: info)
    return buffer.getvalue()


def digest(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


def upload(base, data):
    request = urllib.request.Request(f"{base}/blobs/uploads/", method="POST")
    place = urllib.request.urlopen(request).headers["Location"]
    place += ("&" if "?" in place else "?") + "digest=" + digest(data)
    headers = {"Content-Type": "application/octet-stream"}
    urllib.request.urlopen(urllib.request.Request(place, data=data, method="PUT", headers=headers))


def manifest_of(config, layers):
    return json.dumps({
        "schemaVersion": 2,
        "mediaType": f"{KIND}.manifest.v1+json",
        "config": {"mediaType": f"{KIND}.config.v1+json", "digest": digest(config), "size": len(config)},
        "layers": layers,
    }).encode()


def push(reference, paths, config, arch):
    base, tag = base_of(reference)
    tars = [layer(path) for path in paths]
    blobs = [gzip.compress(tar, 1, mtime=0) for tar in tars]
    text = json.dumps({
        "architecture": arch,
        "os": "linux",
        "created": "2026-11-21T08:00:00Z",
        "config": config,
        "history": [{"created": "2026-11-21T08:00:00Z", "created_by": "COPY files /"} for _ in paths],
        "rootfs": {"type": "layers", "diff_ids": [digest(tar) for tar in tars]},
    }).encode()
    layers = [{"mediaType": f"{KIND}.layer.v1.tar+gzip", "digest": digest(blob), "size": len(blob)} for blob in blobs]
    manifest = manifest_of(text, layers)
    put(base, tag, [*blobs, text], manifest)
    print(digest(manifest))


def put(base, tag, blobs, manifest):
    for data in blobs:
        upload(base, data)
    headers = {"Content-Type": f"{KIND}.manifest.v1+json"}
    request = urllib.request.Request(f"{base}/manifests/{tag}", data=manifest, method="PUT", headers=headers)
    urllib.request.urlopen(request)


def base_of(reference):
    server, _, rest = reference.partition("/")
    name, _, tag = rest.partition(":")
    return f"http://{server}/v2/{name}", tag


def sign(reference, key, signed):
    base, _ = base_of(reference)
    payload = json.dumps({
        "critical": {
            "identity": {"docker-reference": reference},
            "image": {"docker-manifest-digest": signed},
            "type": "cosign container image signature",
        },
        "optional": None,
    }).encode()
    signature = subprocess.run(["openssl", "dgst", "-sha256", "-sign", key], input=payload, capture_output=True, check=True)
    layer = {
        "mediaType": "application/vnd.dev.cosign.simplesigning.v1+json",
        "digest": digest(payload),
        "size": len(payload),
        "annotations": {"dev.cosignproject.cosign/signature": base64.b64encode(signature.stdout).decode()},
    }
    put(base, signed.replace(":", "-") + ".sig", [payload, b"{}"], manifest_of(b"{}", [layer]))


parser = argparse.ArgumentParser()
parser.add_argument("what", choices=["push", "sign"])
parser.add_argument("reference")
parser.add_argument("words", nargs="+")
parser.add_argument("--config", default="{}", type=json.loads)
parser.add_argument("--arch", default="amd64")
given = parser.parse_args()
if given.what == "sign":
    sign(given.reference, *given.words)
else:
    push(given.reference, given.words, given.config, given.arch)
sys.exit(0)
