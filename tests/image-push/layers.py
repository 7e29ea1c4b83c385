"""layers.py LAYOUT TAG: checks an image of an OCI layout: each layer's digest, and that its configuration names what the layers inflate to."""
import gzip, hashlib, json, subprocess, sys

layout, tag = sys.argv[1:]


def blob(descriptor):
    with open(f"{layout}/blobs/" + descriptor["digest"].replace(":", "/"), "rb") as file:
        data = file.read()
    assert "sha256:" + hashlib.sha256(data).hexdigest() == descriptor["digest"] and len(data) == descriptor["size"], descriptor
    return data


def plain(descriptor):
    data = blob(descriptor)
    packed = descriptor["mediaType"].rpartition("tar")[2]
    if packed == "+gzip":
        return gzip.decompress(data)
    if packed == "+zstd":
        return subprocess.run(["zstd", "-dc"], input=data, stdout=subprocess.PIPE, check=True).stdout
    assert packed == "", packed
    return data


index = json.load(open(f"{layout}/index.json"))
named = [m for m in index["manifests"] if m["annotations"]["org.opencontainers.image.ref.name"] == tag]
manifest = json.loads(blob(named[0]))
config = json.loads(blob(manifest["config"]))
diff_ids = config["rootfs"]["diff_ids"]
for descriptor, diff_id in zip(manifest["layers"], diff_ids):
    assert "sha256:" + hashlib.sha256(plain(descriptor)).hexdigest() == diff_id, descriptor
steps = [step for step in config["history"] if not step.get("empty_layer")]
print(f"{len(manifest['layers'])} layers, {len(diff_ids)} diff_ids, {len(steps)} steps with layers")
