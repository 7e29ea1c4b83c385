"""Makes small images and pushes them to a registry, by the registry's own protocol.

    registry.py push SERVER/NAME:TAG LAYER... [--config JSON] [--arch ARCH]     each a directory or a tar file, the lowest first
"""

import argparse
import gzip
import hashlib
import io
import json
import os
import sys
import tarfile
import urllib.request


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


def push(reference, layers, config, arch):
    server, _, rest = reference.partition("/")
    name, _, tag = rest.partition(":")
    base = f"http://{server}/v2/{name}"
    tars = [layer(path) for path in layers]
    blobs = [gzip.compress(tar, 1, mtime=0) for tar in tars]
    text = json.dumps({
        "architecture": arch,
        "os": "linux",
        "created": "2026-11-21T08:00:00Z",
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": [digest(tar) for tar in tars]},
    }).encode()
    kind = "application/vnd.oci.image"
    manifest = json.dumps({
        "schemaVersion": 2,
        "mediaType": f"{kind}.manifest.v1+json",
        "config": {"mediaType": f"{kind}.config.v1+json", "digest": digest(text), "size": len(text)},
        "layers": [
            {"mediaType": f"{kind}.layer.v1.tar+gzip", "digest": digest(blob), "size": len(blob)} for blob in blobs
        ],
    }).encode()
    for data in [*blobs, text]:
        upload(base, data)
    headers = {"Content-Type": f"{kind}.manifest.v1+json"}
    urllib.request.urlopen(
        urllib.request.Request(f"{base}/manifests/{tag}", data=manifest, method="PUT", headers=headers)
    )
    print(digest(manifest))


parser = argparse.ArgumentParser()
parser.add_argument("what", choices=["push"])
parser.add_argument("reference")
parser.add_argument("layers", nargs="+")
parser.add_argument("--config", default="{}", type=json.loads)
parser.add_argument("--arch", default="amd64")
given = parser.parse_args()
push(given.reference, given.layers, given.config, given.arch)
sys.exit(0)
