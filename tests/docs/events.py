#!/usr/bin/env python3
"""The events of --format json: docs/events.schema.json says what they are.
    events.py write              writes docs/EVENTS.md from it
    events.py check              ends with 1 where that page is another
    events.py validate FILE...   each line of each file against the schema; prints the names that it saw"""
import json
import pathlib
import sys
import textwrap

root = pathlib.Path(__file__).resolve().parents[2]
page = root / "docs/EVENTS.md"

HEAD = """# What weft prints for programs

With `--format json` standard output holds one JSON object a line and nothing else; what is for people goes to
standard error. This page is made from [events.schema.json](events.schema.json) by `./dev docs`, and a test
compares the lines of every command with that schema.

- Each line has `event`, which says what it is, and `time`: RFC 3339, in UTC, with milliseconds. What a broker
  tells has the broker's time.
- `job` is the job's number at its broker. A run on one machine has none. `weft plan` asks no broker: its
  `job` is the job file's name.
- Numbers are written so that they read back as the same double. What is not finite is null.
- Only `step` has a field `loss` at the top: other losses are in `metrics`, or have longer names.
- A run that ends, and a command that fails, say so in the last line: `result`, or `error`. The `exit_code` of
  `error` is the one that the command ends with; `man weft` lists them.
- Within a version fields are added, never renamed. A program passes over fields and events that it does not
  know.

`weft chat` is for people alone and has no `--format`.
"""


def schema():
    return json.loads((root / "docs/events.schema.json").read_text())


def forms(definition):
    return definition.get("anyOf", [definition])


def kind_of(field):
    if "const" in field:
        return "text"
    names = {"string": "text", "number": "number", "integer": "whole number", "boolean": "true, false",
             "object": "object", "array": "list"}
    kinds = field["type"] if isinstance(field["type"], list) else [field["type"]]
    return ", ".join(names.get(kind, "null") for kind in kinds)


def rows(fields, required, indent=""):
    for name, field in fields.items():
        if not indent and name in ("event", "time"):
            continue
        may_lack = "" if name in required or name == "job" else "; may be absent"
        yield f"| {indent}`{name}` | {kind_of(field)} | {field['description']}{may_lack} |"
        inner = field.get("items", field)
        if isinstance(inner, dict) and "properties" in inner:
            yield from rows(inner["properties"], inner["required"], indent + "· ")


def written():
    text = HEAD
    for name, definition in sorted(schema()["definitions"].items()):
        text += f"\n## {name}\n"
        for form in forms(definition):
            text += "\n" + "\n".join(textwrap.wrap(f"*{form['title']}*: {form['description']}", 110)) + "\n"
            table = list(rows(form["properties"], form["required"]))
            if table:
                text += "\n| field | is | meaning |\n|---|---|---|\n" + "\n".join(table) + "\n"
    return text


def validate(files):
    import jsonschema

    definitions = schema()["definitions"]
    checkers = {name: jsonschema.Draft7Validator(form) for name, form in definitions.items()}
    seen = set()
    for path in files:
        for number, line in enumerate(open(path, encoding="utf-8"), 1):
            place = f"{path}:{number}"
            try:
                event = json.loads(line)
            except ValueError:
                raise SystemExit(f"FAILED: {place}: no JSON: {line[:200]}")
            name = event.get("event")
            if name not in checkers:
                raise SystemExit(f"FAILED: {place}: an event that the schema does not have: {line[:200]}")
            wrong = list(checkers[name].iter_errors(event))
            if wrong:
                one = min(wrong[0].context, key=lambda e: -len(e.absolute_path), default=wrong[0])
                raise SystemExit(f"FAILED: {place}: {one.message}: {line[:400]}")
            seen.add(name)
    print("\n".join(sorted(seen)))


def main():
    command, *rest = sys.argv[1:] or ["check"]
    if command == "write":
        page.write_text(written())
    elif command == "check":
        if page.read_text() != written():
            raise SystemExit("FAILED: docs/EVENTS.md is not what docs/events.schema.json makes: ./dev docs writes it")
    elif command == "validate":
        validate(rest)
    else:
        raise SystemExit(__doc__)


main()
