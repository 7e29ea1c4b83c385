#!/usr/bin/python3
"""schema.py DIR WORD... <DOCUMENT: holds what a command has printed as JSON against the definition that DIR/json.md names for it, as far as our JSON Schema
goes, and says where it differs. A field that the definition does not know is one that the page does not tell of, so it is refused, too."""
import itertools
import json
import os
import re
import sys

TYPES = {"string": str, "integer": int, "boolean": bool, "array": list, "object": dict, "null": type(None)}


def known(schema):
    """The fields that a definition and its parts know."""
    schema = resolved(schema)
    return set(schema.get("properties", {})).union(*(known(part) for part in schema.get("allOf", [])))


def resolved(schema):
    return whole["$defs"][schema["$ref"].rsplit("/", 1)[1]] if "$ref" in schema else schema


def differs(value, schema, where, fields=None):
    """The first difference, or nothing."""
    schema = resolved(schema)
    fields = fields or known(schema)
    if "anyOf" in schema:
        found = [differs(value, part, where) for part in schema["anyOf"]]
        return None if None in found else found[0]
    for part in schema.get("allOf", []):
        if found := differs(value, part, where, fields):
            return found
    if "type" in schema:
        types = [schema["type"]] if isinstance(schema["type"], str) else schema["type"]
        if not any(type(value) is TYPES[name] for name in types):
            return f"{where}: {value!r} is not {types}"
    if "enum" in schema and value not in schema["enum"]:
        return f"{where}: {value!r} is not one of {schema['enum']}"
    if "pattern" in schema and isinstance(value, str) and not re.search(schema["pattern"], value):
        return f"{where}: {value!r} does not match"
    if isinstance(value, list) and "items" in schema:
        return next(filter(None, (differs(one, schema["items"], f"{where}[{i}]") for i, one in enumerate(value))), None)
    if isinstance(value, dict) and "additionalProperties" in schema:
        return next(filter(None, (differs(one, schema["additionalProperties"], f"{where}.{name}") for name, one in value.items())), None)
    if isinstance(value, dict) and "properties" in schema:
        for name in schema.get("required", []):
            if name not in value:
                return f"{where}: no {name}"
        for name, field in value.items():
            if name not in fields:
                return f"{where}: {name} is not described"
            if name in schema["properties"] and (found := differs(field, schema["properties"][name], f"{where}.{name}")):
                return found
    return None


def path(words):
    """The names of the command and its subcommand: what stands before options and before what the page calls NAME."""
    return list(itertools.takewhile(lambda word: not word.startswith("-") and not word.isupper(), words))


def definitions(page, words):
    """Those that the page has for this command line. Of two lines of one command, that which is a dry run as this one is counts."""
    found = []
    for line, definition in re.findall(r"^\| `skiff (.*?)` \| `(.*?)` \|$", page, re.M):
        wanted = path(line.split())
        if path(words)[: len(wanted)] == wanted:
            found.append(("--dry-run" in line, definition))
    is_dry = "--dry-run" in words
    return [one for dry, one in found if dry == is_dry] or [one for _, one in found]


directory, words = sys.argv[1], sys.argv[2:]
whole = json.load(open(f"{directory}/json.schema.json"))
words = words[[os.path.basename(word) for word in words].index("skiff") + 1:]
document = json.load(sys.stdin)
if not document:
    sys.exit("nothing to look at")
differences = [differs(document, {"$ref": f"#/$defs/{one}"}, one) for one in definitions(open(f"{directory}/json.md").read(), words)]
if None not in differences:
    sys.exit("\n".join(differences) or f"json.md: no line for skiff {' '.join(words)}")
