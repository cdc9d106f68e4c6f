#!/usr/bin/env python3
"""Compares the requirements of the specifications with the citations of them in the code.

doc/spec/trp.md and doc/spec/channel.md mark each sentence with MUST or MUST NOT by a tag, [R8.4-2]
or [C8.2-1]: the second requirement of section 8.4, and the first of section 8.2.
doc/spec/rfc-requirements.md has a tag for each applicable requirement of an RFC,
[RFC5040-5.2.1-3]. The code cites tags in a comment of its own, directly above the line that
implements the requirement, with a short description or with the sentences of the page:

    // R8.4-2, R4.3-1: a malformed packet is not answered.
    // R8.4-2
    //# It MUST NOT send one in answer to a RESET or to a packet that fails checks 1 to 4 of section
    //# 4.3.

With --write the sentences are written anew.

Lists on standard output, and exits with 1 if there is any of:

- a sentence of trp.md or channel.md with MUST and without a tag, or an entry of
  rfc-requirements.md without one;
- a tag that occurs twice, or in another section than its own;
- a tag that no line of *.rs or *.c outside of tests cites;
- a citation of a tag that does not exist, in another form, with other sentences than those of the
  page, or not above code.
"""

import os
import re
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Specifications, and the letter that their tags begin with.
SPECIFICATIONS = {"doc/spec/trp.md": "R", "doc/spec/channel.md": "C"}
RFCS = "doc/spec/rfc-requirements.md"
# The heading whose section defines MUST.
CONVENTIONS = "Conventions"
# The heading in RFCS under which entries have tags.
APPLICABLE = "Requirements that apply"

TAG = r"(?:R(?:FC\d+-)?|C)\d+(?:\.\d+)*-\d+"
TAG_IN_TEXT = re.compile(rf"\[({TAG})\]")
TAG_IN_CODE = re.compile(rf"\b{TAG}\b")
CITATION = re.compile(rf"(\s*)// ({TAG}(?:, {TAG})*)(: \S.*)?$")
SENTENCE = re.compile(r"\s*//# (\S.*)$")
WIDTH = 100
HEADING = re.compile(r"(#+) (?:(\d+(?:\.\d+)*)\.? )?(.*)")
MUST = re.compile(r"\bMUST\b")
SENTENCE_END = re.compile(r"(?<=\.)\s+(?=[A-Z`*(])")
SKIPPED_FOLDERS = {".git", "target", "node_modules"}


def paragraphs(text):
    """Yields (line number, section, level-2 heading, text) of each paragraph, list item or row."""
    section, chapter, is_code, begin, lines = "", "", False, 0, []

    def item():
        return begin, section, chapter, " ".join(lines)

    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        heading = HEADING.match(line)
        if stripped.startswith("```"):
            is_code = not is_code
        begins = re.match(r"([-*|]|\d+\.) ", stripped)
        if lines and (not stripped or is_code or heading or begins or stripped == "```"):
            yield item()
            lines = []
        if is_code or not stripped or stripped.startswith("```"):
            continue
        if heading:
            section = heading[2] or ""
            if heading[1] == "##":
                chapter = heading[3]
            continue
        if not lines:
            begin = number
        lines.append(stripped)
    if lines:
        yield item()


def spec_tags(page, letter, problems):
    """Returns the tags of a specification with their lines."""
    found = {}
    for line, section, chapter, text in paragraphs((ROOT / page).read_text(encoding="utf-8")):
        if chapter == CONVENTIONS:
            continue
        for sentence in SENTENCE_END.split(text):
            tags = TAG_IN_TEXT.findall(sentence)
            if MUST.search(sentence) and not tags:
                problems.append(f"{page}:{line}: MUST without a tag: {sentence}")
            for tag in tags:
                add(found, tag, f"{page}:{line}", problems)
                if tag.rsplit("-", 1)[0] != f"{letter}{section}":
                    problems.append(f"{page}:{line}: [{tag}] stands in section {section}")
    return found


def rfc_tags(problems):
    """Returns the tags of rfc-requirements.md with their lines."""
    found = {}
    for line, _, chapter, text in paragraphs((ROOT / RFCS).read_text(encoding="utf-8")):
        tags = TAG_IN_TEXT.findall(text)
        is_entry = text.startswith("- ") and chapter == APPLICABLE
        if is_entry and len(tags) != 1:
            problems.append(f"{RFCS}:{line}: {len(tags)} tags in an entry, not one: {text}")
        if tags and chapter != APPLICABLE:
            problems.append(f"{RFCS}:{line}: a tag outside of \"{APPLICABLE}\": {text}")
        for tag in tags:
            add(found, tag, f"{RFCS}:{line}", problems)
    return found


def add(found, tag, place, problems):
    if tag in found:
        problems.append(f"{place}: [{tag}] is at {found[tag]} already")
    found[tag] = place


def sources():
    """Yields the paths of all code."""
    for folder, folders, files in os.walk(ROOT):
        folders[:] = sorted(name for name in folders if name not in SKIPPED_FOLDERS)
        for name in sorted(files):
            if name.endswith((".rs", ".c")):
                yield Path(folder, name)


def sentences():
    """Returns the sentence of each tag."""
    found = {}
    for page in (*SPECIFICATIONS, RFCS):
        for _, _, _, text in paragraphs((ROOT / page).read_text(encoding="utf-8")):
            for sentence in SENTENCE_END.split(text):
                # Without the mark of a list, and the cells of a table in a row.
                words = TAG_IN_TEXT.sub("", sentence).removeprefix("- ").replace("|", " ")
                words = re.sub(r"^\d+\. ", "", " ".join(words.split()))
                words = re.sub(r" (?=[.,;:])", "", words)
                found |= {tag: words for tag in TAG_IN_TEXT.findall(sentence)}
    return found


def with_sentences(lines, said):
    """The lines of a file with the sentences of its citations that have no words of their own."""
    kept = []
    for line in lines:
        if SENTENCE.match(line):
            continue
        kept.append(line)
        citation = CITATION.match(line)
        for tag in re.findall(TAG, citation[2]) if citation and not citation[3] else ():
            begin = f"{citation[1]}//# "
            kept += textwrap.wrap(
                said.get(tag, ""),
                WIDTH,
                initial_indent=begin,
                subsequent_indent=begin,
                break_long_words=False,
                break_on_hyphens=False,
            )
    return kept


def check_sentences(writes, problems):
    """Checks the sentences of all citations, or writes them."""
    said = sentences()
    for path in sources():
        lines = path.read_text(encoding="utf-8").splitlines()
        wanted = with_sentences(lines, said)
        if wanted == lines:
            continue
        if writes:
            path.write_text("\n".join(wanted) + "\n", encoding="utf-8")
        else:
            at = next((at for at, pair in enumerate(zip(lines, wanted)) if pair[0] != pair[1]), 0)
            place = f"{path.relative_to(ROOT)}:{at + 1}"
            problems.append(f"{place}: not the sentence of the page: check-citations.py --write")


def citations(known, problems):
    """Returns the tags that code outside of tests cites."""
    cited = set()
    for path in sources():
        name = path.relative_to(ROOT)
        lines = path.read_text(encoding="utf-8").splitlines()
        for at, line in enumerate(lines):
            if SENTENCE.match(line):
                continue
            tags = TAG_IN_CODE.findall(line)
            if not tags:
                continue
            place = f"{name}:{at + 1}"
            if not CITATION.match(line):
                problems.append(f"{place}: not of the form \"// TAG, TAG: words\": {line.strip()}")
            elif not followed_by_code(lines, at):
                problems.append(f"{place}: a citation above nothing: {line.strip()}")
            problems += [f"{place}: {tag} does not exist" for tag in tags if tag not in known]
            if "tests" not in name.parts:
                cited.update(tags)
    return cited


def followed_by_code(lines, at):
    """Whether the next line that is not a comment or attribute is code, without an empty line."""
    for line in lines[at + 1 :]:
        stripped = line.strip()
        if not stripped.startswith(("//", "#[")):
            return bool(stripped) and stripped not in ("}", "};", ")", ");")
    return False


def main():
    problems = []
    check_sentences("--write" in sys.argv[1:], problems)
    known = rfc_tags(problems)
    for page, letter in SPECIFICATIONS.items():
        known |= spec_tags(page, letter, problems)
    cited = citations(known, problems)
    missing = [tag for tag in known if tag not in cited]
    problems += [f"{known[tag]}: no code cites {tag}" for tag in missing]
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
