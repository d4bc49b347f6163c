#!/usr/bin/env python3
"""Makes a model file for `ssntp opflex serve --model` from agent-ovs's own definitions.

    opflex-model-import.py DIR [--output model.json] [--open]

DIR holds the definition files *.mdl, in any folders: genie/MODEL in the sources of
agent-ovs. The model file is JSON, or YAML if its name ends so; without --output it goes
to the standard output as YAML. --open makes a model that accepts other classes, too.

    module[gbp]
    {
        type[Policy; super=scalar/Enum8] { const[name=allow; value=0] }
        class[EpGroup; super=gbp/Group; concrete]           GbpEpGroup:
        {                                                     under: [PolicySpace]
            contained { parent[class=policy/Space] }          properties:
            member[policy; type=gbp/Policy]                     policy: {enum: [allow]}
            dependency[network] { to[class=gbp/Domain] }    GbpEpGroupToNetworkRSrc:
        }                                                     under: [GbpEpGroup]
    }                                                         properties: {target: {reference: [GbpDomain]}}

A class is called by its module and its name, and inherits members, containment and
relations. A relation is a class of its own, named after the class that declares it. Only
classes that are not abstract are in the model file; where a file names an abstract class,
the classes below it stand there. Names that are used but not defined are left out, or
taken as any type, and reported.
"""
import argparse
import json
import os
import re
import sys

MAX_FILES = 10_000
MAX_BYTES = 64 << 20
# How deep folders and braces may nest. The deepest statements of agent-ovs have five.
MAX_DEPTH = 32
# How many classes or types may stand above one another. Those of agent-ovs have six; more
# means that the definitions go round in a circle.
MAX_HEIGHT = 64
# Reports that are printed; all of them are counted.
SHOWN = 10
# The class at `/`, which contains the classes with `root`.
ROOT = "dmtree/Root"


class Statement:
    """kind[value; name=value] { inner statements }"""

    def __init__(self, kind, line):
        self.kind, self.line, self.values, self.inner = kind, line, [], []

    def value(self, name):
        return next((value for known, value in self.values if known == name), None)

    def name(self):
        """What the statement is about: `name=` or the first value without a name."""
        named = self.value("name")
        return self.value(None) if named is None else named

    def all(self, kind):
        return (inner for inner in self.inner if inner.kind == kind)


class Reader:
    """The statements in the text of one file. `#` begins a comment."""

    def __init__(self, file, text):
        self.file, self.text, self.at, self.line = file, text.removeprefix("\ufeff"), 0, 1

    def fail(self, what):
        sys.exit(f"model file: {self.file}: line {self.line}: {what}")

    def peek(self):
        """The next character that is neither blank nor in a comment; None at the end."""
        while self.at < len(self.text):
            c = self.text[self.at]
            if c == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            elif c.isspace():
                self.line += c == "\n"
                self.at += 1
            else:
                return c
        return None

    def statements(self, depth=0):
        if depth > MAX_DEPTH:
            self.fail("too many braces are open")
        statements = []
        while True:
            c = self.peek()
            if c is None:
                if depth > 1:
                    self.fail("a brace is not closed")
                if depth:
                    # The compiler of agent-ovs accepts this too, and a file of theirs needs it.
                    print(f"note: {self.file}: line {self.line}: the last brace is missing", file=sys.stderr)
                return statements
            if c == "}" and depth:
                self.at += 1
                return statements
            if c in ";,":
                self.at += 1
            elif c in "{}[]":
                self.fail(f"'{c}' stands here without a name before it")
            else:
                statements.append(self.statement(depth))

    def statement(self, depth):
        kind = re.compile(r"[^\s\[\]{};,#]+").match(self.text, self.at).group()
        self.at += len(kind)
        statement = Statement(kind, self.line)
        if self.peek() == "[":
            statement.values = self.bracket()
        if self.peek() == "{":
            self.at += 1
            statement.inner = self.statements(depth + 1)
        return statement

    def bracket(self):
        text, quoted, comment = "", False, False
        for at in range(self.at + 1, len(self.text)):
            c = self.text[at]
            if c == "\n":
                self.line += 1
                # No quotation or comment goes on in the next line.
                text, quoted, comment = text + " ", False, False
            elif comment:
                pass
            elif c == '"':
                quoted = not quoted
            elif c == "#" and not quoted:
                comment = True
            elif c == "]" and not quoted:
                self.at = at + 1
                values = [value.strip() for value in text.split(";")]
                pairs = [value.partition("=") for value in values if value]
                return [(k.strip(), v.strip()) if mark else (None, k) for k, mark, v in pairs]
            else:
                text += c
        self.fail("a bracket is not closed")


class Class:
    def __init__(self):
        self.above, self.is_abstract, self.is_root, self.place = None, False, False, ""
        self.parents, self.members, self.relations = [], [], []


def full_name(name):
    """What a class is called on the wire."""
    return "".join(part[:1].upper() + part[1:] for part in name.split("/"))


class Model:
    """What all files say together."""

    def __init__(self):
        self.classes, self.types, self.skipped = {}, {}, []

    def skip(self, place, what):
        self.skipped.append(f"{place}: {what}")

    def add(self, file, statements):
        for statement in statements:
            if statement.kind == "module" and statement.name() is not None:
                for inner in statement.inner:
                    self.define(file, statement.name(), inner)
            elif statement.kind != "owner":
                # `owner` says who may write what, which the model file does not hold.
                self.skip(f"{file}: line {statement.line}", statement.kind[:64])

    def define(self, file, module, statement):
        place = f"{file}: line {statement.line}"
        name = statement.name()
        if name is None or statement.kind not in ("type", "primitive", "class"):
            return self.skip(place, statement.kind[:64])

        def in_module(name):
            return name if "/" in name or name == "*" else f"{module}/{name}"

        def classes_of(within, kind):
            classes = (one.value("class") for one in within.all(kind))
            return [in_module(found) for found in classes if found is not None]

        above = statement.value("super")
        above = statement.value("like") if above is None else above
        above = None if above is None else in_module(above)
        if statement.kind != "class":
            known = self.types.setdefault(in_module(name), {"above": None, "constants": []})
            known["above"] = above or known["above"]
            names = (constant.name() for constant in statement.all("const"))
            known["constants"] += [found for found in names if found is not None]
            return None
        known = self.classes.setdefault(in_module(name), Class())
        known.place = place
        known.above = above or known.above
        known.is_abstract |= (None, "abstract") in statement.values
        for inner in statement.inner:
            about = inner.name()
            if inner.kind == "root":
                known.is_root = True
            elif inner.kind == "contained":
                known.parents += classes_of(inner, "parent")
            elif inner.kind == "member" and about is not None:
                known.members.append((about, in_module(inner.value("type") or "")))
            elif inner.kind in ("dependency", "association", "reference") and about is not None:
                known.relations.append((about, classes_of(inner, "to")))
            elif inner.kind not in ("named", "override-member"):
                # `named` says how a URI is made, `override-member` which values an
                # inherited member has. Neither is checked.
                self.skip(f"{file}: line {inner.line}", inner.kind[:64])
        return None

    def lineage(self, name):
        """The names of a class and of those above it, the nearest first."""
        for _ in range(MAX_HEIGHT):
            if name is None:
                return
            yield name
            name = self.classes[name].above if name in self.classes else None

    def model(self):
        """The classes of the model file."""
        if any(known.is_root for known in self.classes.values()):
            self.classes.setdefault(ROOT, Class())
        below = {name: set() for name in self.classes}
        for name, known in self.classes.items():
            for above in self.lineage(name):
                if above in below and not known.is_abstract:
                    below[above].add(full_name(name))
        model = {}
        for name, known in sorted(self.classes.items()):
            if not known.is_abstract:
                model[full_name(name)] = self.concrete(name, below)
            for relation, to in known.relations:
                targets = set()
                is_any = False
                for target in to:
                    if target in below:
                        targets |= below[target]
                    else:
                        is_any = True
                        if target != "*":
                            self.skip(known.place, f"{relation} to the unknown {target}")
                kind = {"reference": sorted(targets)} if targets and not is_any else "reference"
                source = {"under": sorted(below[name]), "properties": {"target": kind}}
                model[f"{full_name(name)}To{full_name(relation)}RSrc"] = source
        return dict(sorted(model.items()))

    def concrete(self, name, below):
        properties, under, is_anywhere, is_placed = {}, set(), False, False
        for above in self.lineage(name):
            known = self.classes.get(above)
            if known is None:
                continue
            if known.is_root:
                is_placed = True
                under.add(full_name(ROOT))
            for parent in known.parents:
                is_placed = True
                if parent in below:
                    under |= below[parent]
                elif parent == "*":
                    is_anywhere = True
                else:
                    self.skip(known.place, f"contained in the unknown {parent}")
            for member, kind in known.members:
                # The nearest definition counts.
                if member not in properties:
                    properties[member] = self.kind(kind)
                    if properties[member] is None:
                        self.skip(known.place, f"{member} of the unknown type {kind}")
                        properties[member] = "any"
            if known.above is not None and known.above not in self.classes:
                self.skip(known.place, f"below the unknown {known.above}")
                # What it inherits is not known.
                is_anywhere = True
        properties = dict(sorted(properties.items()))
        if is_placed and not is_anywhere and under:
            return {"under": sorted(under), "properties": properties}
        return {"properties": properties}

    def kind(self, name):
        """The type of a member in the model file, by the primitive type below its own."""
        constants = []
        for _ in range(MAX_HEIGHT):
            known = self.types.get(name)
            constants += known["constants"] if known else []
            module, slash, kind = name.partition("/")
            if not slash:
                return None
            if module == "scalar" and kind.startswith(("UInt", "Bitmask")):
                return "u64"
            if module == "scalar" and kind.startswith("SInt"):
                return "i64"
            if module == "scalar" and kind.startswith("Enum"):
                return {"enum": constants} if constants else "any"
            if name == "address/MAC":
                return "mac"
            # libopflex has references as strings, whatever they name.
            if name in ("address/IP", "ascii/String") or module == "reference" and kind != "CRI":
                return "string"
            if known is None or known["above"] is None:
                return None
            name = known["above"]
        return None


def plain(text):
    """A text as YAML, quoted unless every reader takes it as a text."""
    words = {"", "y", "n", "yes", "no", "on", "off", "true", "false", "null"}
    is_plain = re.fullmatch(r"[A-Za-z_][A-Za-z0-9_./-]*", text) and text.lower() not in words
    return text if is_plain else json.dumps(text)


def yaml(value, indent=""):
    """The lines of a value as YAML."""
    if isinstance(value, list):
        return [f"{indent}- {plain(one)}" for one in value]
    lines = []
    for name, inner in value.items():
        if isinstance(inner, bool):
            lines.append(f"{indent}{plain(name)}: {json.dumps(inner)}")
        elif isinstance(inner, str):
            lines.append(f"{indent}{plain(name)}: {plain(inner)}")
        elif inner:
            # A list stands as far left as its name.
            deeper = indent if isinstance(inner, list) else indent + "  "
            lines += [f"{indent}{plain(name)}:"] + yaml(inner, deeper)
        else:
            lines.append(f"{indent}{plain(name)}: {json.dumps(inner)}")
    return lines


def definition_files(folder):
    paths = []
    for path, folders, files in os.walk(folder, onerror=lambda e: sys.exit(f"{e.filename}: {e.strerror}")):
        if os.path.relpath(path, folder).count(os.sep) + 1 >= MAX_DEPTH:
            folders.clear()
        paths += [os.path.join(path, file) for file in files if file.endswith(".mdl")]
    if not paths:
        sys.exit(f"{folder}: there are no *.mdl files")
    if len(paths) > MAX_FILES:
        sys.exit(f"{folder}: more than {MAX_FILES} files")
    if sum(map(os.path.getsize, paths)) > MAX_BYTES:
        sys.exit(f"{folder}: more than {MAX_BYTES} bytes")
    return sorted(paths)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dir", help="the folder with the definition files")
    parser.add_argument("--output", metavar="FILE", help="the file to write: JSON, or YAML if its name ends so")
    parser.add_argument("--open", action="store_true", help="accept classes that are not in the model, too")
    args = parser.parse_args()
    model = Model()
    paths = definition_files(args.dir)
    for path in paths:
        with open(path, encoding="utf-8", errors="replace", newline="") as file:
            model.add(path, Reader(path, file.read()).statements())
    classes = model.model()
    made = {"open": args.open, "classes": classes}
    if args.output and not args.output.lower().endswith((".yaml", ".yml")):
        text = json.dumps(made, indent=2, ensure_ascii=False) + "\n"
    else:
        text = "\n".join(yaml(made)) + "\n"
    if args.output:
        with open(args.output, "w", encoding="utf-8") as file:
            file.write(text)
    else:
        sys.stdout.write(text)
    for place in model.skipped[:SHOWN]:
        print(f"skipped: {place}", file=sys.stderr)
    properties = sum(len(known["properties"]) for known in classes.values())
    print(
        f"{len(paths)} files: {len(classes)} classes with {properties} properties, {len(model.skipped)} skipped",
        file=sys.stderr,
    )


if __name__ == "__main__":
    try:
        main()
    except OSError as e:
        sys.exit(f"{e.filename}: {e.strerror}")
