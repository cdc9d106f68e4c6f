#!/usr/bin/env python3
"""Check that the source files of a crate depend on one another in one direction.

Usage: check-modules.py [-v] [FOLDER...]

FOLDER is a package's folder, for example crates/engine; without one, all packages that the project
keeps track of are checked. The graph has one node per file below src and an edge for each path
that begins with `crate`, `super`, `self` or the name of a child module, in a `use` declaration or
elsewhere. An edge ends at the file that a re-export leads to, so a re-export is no edge of its own.
The folders directly below src are checked as well, each with all of its files as one node.
If `impl` blocks of one type are in several files, a call of a method on `self` is an edge to the
file that has the method. Code under `#[cfg(test)]` is left out.

The exit status is 1 if there is a cycle. With -v the edges are printed.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KEYWORDS = ("crate", "super", "self")
NAME = r"[A-Za-z_][A-Za-z0-9_]*"


def folders():
    """The packages that are checked without an argument."""
    found = sorted(path.parent for path in ROOT.glob("crates/*/Cargo.toml"))
    return found + [ROOT / name for name in ("proto-trp", "provider", "urdmad")]


def without_comments(text):
    """The text without comments and the contents of strings and characters."""
    pattern = re.compile(
        r"//[^\n]*|/\*.*?\*/|b?r(#*)\".*?\"\1|b?\"(?:\\.|[^\"\\])*\"|b?'(?:\\.[^']*|[^'\\\n])'",
        re.S,
    )
    return pattern.sub(lambda match: "" if match[0].startswith("/") else '""', text)


def end_of_item(text, start):
    """Where the item that begins at `start` ends: its semicolon or its closing brace."""
    depth = 0
    for at in range(start, len(text)):
        if text[at] in "{([":
            depth += 1
        elif text[at] in "})]":
            depth -= 1
            if depth == 0 and text[at] == "}" and not text[at + 1 :].lstrip().startswith(";"):
                return at + 1
        elif text[at] == ";" and depth == 0:
            return at + 1
    return len(text)


def without_tests(text):
    """The text without the items under `#[cfg(test)]` and similar attributes."""
    attribute = re.compile(r"#\[cfg\((?:all\()?(?:test|loom)\b[^\]]*\]\s*")
    while match := attribute.search(text):
        start = match.end()
        while attribute_after := re.compile(r"#\[[^\]]*\]\s*").match(text, start):
            start = attribute_after.end()
        text = text[: match.start()] + text[end_of_item(text, start) :]
    return text


def split_list(text):
    """The parts of a list that are separated by commas outside of braces."""
    parts, depth, begin = [], 0, 0
    for at, octet in enumerate(text):
        depth += (octet == "{") - (octet == "}")
        if octet == "," and depth == 0:
            parts.append(text[begin:at])
            begin = at + 1
    return [part.strip() for part in parts + [text[begin:]] if part.strip()]


def expand(tree):
    """The paths of a use tree, each with the name that it introduces."""
    head, brace, rest = tree.partition("{")
    if not brace:
        path, _, name = tree.partition(" as ")
        segments = [segment.strip() for segment in path.split("::")]
        return [(segments, name.strip() or segments[-1])]
    prefix = [segment.strip() for segment in head.split("::") if segment.strip()]
    inside = rest.rstrip()[:-1]
    found = []
    for part in split_list(inside):
        for segments, name in expand(part):
            if segments == ["self"]:
                found.append((prefix, prefix[-1]))
            else:
                found.append((prefix + segments, name))
    return found


class Module:
    """A module with a file of its own."""

    def __init__(self, path, parent, name):
        self.path, self.parent, self.name = path, parent, name
        self.text = without_tests(without_comments(path.read_text()))
        self.children, self.imports, self.globs, self.uses = {}, {}, [], []
        self.add_children()
        use = re.compile(rf"(?m)^\s*(pub(?:\([^)]*\))?\s+)?use\s+([^;]+);")
        for match in use.finditer(self.text):
            for segments, known_as in expand(" ".join(match[2].split())):
                if segments[-1] == "*":
                    self.globs.append(segments[:-1])
                else:
                    self.imports[known_as] = segments
                self.uses.append((segments, bool(match[1])))
        self.body = use.sub("", self.text)
        self.impls = list(self.find_impls())

    def add_children(self):
        stem = self.path.parent if self.path.name in ("lib.rs", "main.rs", "mod.rs") else None
        folder = stem or self.path.with_suffix("")
        declared = re.finditer(
            rf'(#\[path = ""\]\s*)?^\s*(?:pub(?:\([^)]*\))?\s+)?mod\s+({NAME})\s*;', self.text, re.M
        )
        for match in declared:
            for path in (folder / f"{match[2]}.rs", folder / match[2] / "mod.rs"):
                if path.exists():
                    self.children[match[2]] = Module(path, self, match[2])

    def find_impls(self):
        """The inherent `impl` blocks: the type's name and the text."""
        head = re.compile(rf"(?m)^\s*(?:unsafe\s+)?impl\b([^{{;]*)\{{")
        for match in head.finditer(self.body):
            words = match[1].split(" where ")[0]
            while words != (words := re.sub(r"<[^<>]*>", "", words.replace("->", ""))):
                pass
            if name := re.fullmatch(rf"\s*(?:{NAME}::)*({NAME})\s*", words):
                yield name[1], self.body[match.start() : end_of_item(self.body, match.start())]

    def methods(self):
        """The methods of each type's `impl` blocks, by the file of the type and its name."""
        for name, text in self.impls:
            yield (self.follow([name], ()), name), set(re.findall(rf"\bfn\s+({NAME})", text))

    def called(self):
        """The methods that `impl` blocks call on `self`, by the file of the type and its name."""
        call = re.compile(rf"\b(?:self\s*\.\s*|Self::)({NAME})\s*(?:::<[^()]*>)?\(")
        for name, text in self.impls:
            yield (self.follow([name], ()), name), set(call.findall(text))

    def all(self):
        yield self
        for child in self.children.values():
            yield from child.all()

    def defines(self, name):
        kinds = r"struct|enum|trait|type|fn|const|static|union|macro_rules!|mod"
        return re.search(rf"\b(?:{kinds})\s+{name}\b", self.text) is not None

    def root(self):
        return self.parent.root() if self.parent else self

    def resolve(self, segments, seen=()):
        """The module whose file defines the item at a path; None if it is not in the crate."""
        module, at = self, 0
        if segments[0] == "crate":
            module, at = self.root(), 1
        elif segments[0] not in ("super", "self") and segments[0] not in self.children:
            return None
        for at in range(at, len(segments)):
            name = segments[at]
            if name == "self":
                continue
            if name == "super":
                module = module.parent
                if module is None:
                    return None
            elif name in module.children:
                module = module.children[name]
            else:
                return module.follow(segments[at:], seen)
        return module

    def follow(self, segments, seen):
        """The module that defines a name of this one, resolved through re-exports."""
        name = segments[0]
        if (self, name) in seen or self.defines(name):
            return self
        seen = (*seen, (self, name))
        if name in self.imports:
            found = self.resolve(self.imports[name] + segments[1:], seen)
            return found or self
        for glob in self.globs:
            found = self.resolve(glob + segments, seen)
            if found and found.defines(name):
                return found
        return self

    def edges(self):
        """The modules that this one depends on."""
        found = set()
        for segments, is_reexport in self.uses:
            if not (is_reexport and self.children) and segments[-1] != "*":
                found.add(self.resolve(segments))
            elif segments[-1] == "*" and not is_reexport and segments != ["super", "*"]:
                found.add(self.resolve(segments[:-1]))
        starts = "|".join([*KEYWORDS, *map(re.escape, self.children)])
        path = re.compile(rf"(?<![A-Za-z0-9_:])\$?((?:{starts})(?:::{NAME})+)")
        for match in path.finditer(self.body):
            if not re.search(r"pub\($|\bin\s*$", self.body[: match.start()][-8:]):
                found.add(self.resolve(match[1].split("::")))
        return found - {None, self}


def components(graph):
    """The strongly connected components of more than one node (Tarjan)."""
    index, low, stack, found = {}, {}, [], []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in graph[node]:
            if other not in index:
                visit(other)
            if other in stack:
                low[node] = min(low[node], low[other])
        if low[node] == index[node]:
            at = stack.index(node)
            if len(stack) - at > 1:
                found.append(stack[at:])
            del stack[at:]

    for node in graph:
        if node not in index:
            visit(node)
    return found


def add_calls(graph):
    """Adds an edge for each call of a method that another file defines for the same type."""
    owners = {}
    for module in graph:
        for kind, names in module.methods():
            for name in names:
                owners.setdefault((kind, name), set()).add(module)
    for module in graph:
        for kind, names in module.called():
            for name in names:
                graph[module] |= owners.get((kind, name), set()) - {module}


def folders_of(files):
    """The same graph with a node for each folder or module directly below `src`."""

    def top(path):
        return "/".join(path.split("/")[:2]).removesuffix(".rs")

    graph = {}
    for path, others in files.items():
        node = top(path)
        nodes = {top(other) for other in others}
        graph.setdefault(node, set()).update(nodes - {node})
    return graph


def check(folder, is_verbose):
    """The cycles of a package, of files and of folders: lines of text for each one."""
    roots = [folder / "src" / name for name in ("lib.rs", "main.rs")]
    for root in filter(Path.exists, roots):
        modules = list(Module(root, None, "crate").all())
        graph = {module: module.edges() for module in modules}
        add_calls(graph)
        if is_verbose:
            for module, others in graph.items():
                names = sorted(str(other.path.relative_to(folder)) for other in others)
                print(f"{module.path.relative_to(folder)}: {' '.join(names)}")
        files = {
            str(module.path.relative_to(folder)): {
                str(other.path.relative_to(folder)) for other in others
            }
            for module, others in graph.items()
        }
        for nodes, kind in ((files, "files"), (folders_of(files), "folders")):
            for cycle in components(nodes):
                lines = [f"{root.relative_to(ROOT)}: {len(cycle)} {kind} depend on one another:"]
                for node in cycle:
                    others = sorted(other for other in cycle if other in nodes[node])
                    lines.append(f"    {node} uses {', '.join(others)}")
                yield lines


def main():
    arguments = sys.argv[1:]
    is_verbose = "-v" in arguments
    named = [Path(name).resolve() for name in arguments if name != "-v"]
    lines = []
    for folder in named or folders():
        if not (folder / "src").is_dir():
            sys.exit(f"check-modules: {folder} has no src")
        for report in check(folder, is_verbose):
            lines += report
    print("\n".join(lines), end="\n" if lines else "")
    sys.exit(1 if lines else 0)


main()
