#!/usr/bin/python3
"""schema.py SCHEMA DEFINITION <DOCUMENT: holds a document against a definition of a JSON Schema, as far as ours goes, and says where it differs.
A field that the definition does not know is one that the page does not tell of, so it is refused, too."""
import json
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


whole = json.load(open(sys.argv[1]))
document = json.load(sys.stdin)
if not document:
    sys.exit("nothing to look at")
sys.exit(differs(document, {"$ref": f"#/$defs/{sys.argv[2]}"}, sys.argv[2]))
