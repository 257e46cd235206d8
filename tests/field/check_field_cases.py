#!/usr/bin/env python3
"""Checks docs/field-cases.md against the tests that exist.

usage: check_field_cases.py [ROOT]

Prints one line for each thing that is wrong and exits with 1 when there is one:
a row that is missing, stands twice or has another form; a test that no source has; a reason that
names neither an invariant nor a structure; a count in the introduction that the table belies; a
row of the section on formats that FORMAT_TESTS does not try, and a case of it that has no row.
Python's standard library only.
"""

import re
import sys
from pathlib import Path

ROWS = 96
KINDS = {"ID", "DV", "LD", "ST", "RT", "NM", "CC", "TX", "TR", "SL", "VR", "DR", "HG"}
LATER = ("server", "transport")
CATEGORIES = ("tested", "by design") + tuple(f"later: {what}" for what in LATER)

GTEST = re.compile(r"^(?:TEST|TEST_F|TEST_P|TYPED_TEST|RC_GTEST_PROP|RC_GTEST_FIXTURE_PROP)"
                   r"\(\s*(\w+)\s*,\s*(\w+)", re.M)
PY_CLASS = re.compile(r"^class (\w+)")
PY_TEST = re.compile(r"^    def (test_\w+)")
LINK = re.compile(r"\[[^\]\s]+\]\(https://[^)\s]+\)")
TESTS = re.compile(r"(`[\w.]+`(?:, `[\w.]+`)*)(?:: \S.*)?")
BY_DESIGN = re.compile(r"by design: (I\d+(?:, I\d+)*|no [^:]+): \S.*")
LATER_FORM = re.compile(r"later: (\w+)(?:: \S.*)?")
NAMED = re.compile(r"`(\w+(?:\.\w+)+)`")
COUNT = re.compile(r"^\| (tested|by design|later: \w+) \| (\d+) \|", re.M)

FORMAT_TESTS = "tests/formats/reload_test.cc"
FORMAT_SECTION = re.compile(r"^## Formats: .*?(?=^## |\Z)", re.M | re.S)
FORMAT_ROW = re.compile(r"\| ([^|]+) \| ([^|]+) \| ([^|]+) \| (RED|refused): ([^|]+) \|")
FORMAT_CASE = re.compile(r'\{Kind::k(\w+), "([^"]+)", B::k(\w+),\s*'
                         r'(?:\{([^}]*)\}|"([^"]+)")\}')
BACKENDS = {"Marlin": "marlin-like", "Machete": "machete-like", "Trtllm": "trtllm-like"}


def tests_in(root):
    """Names of all tests: Suite.Name, script.Class.test_name, compile_fail.name."""
    names = set()
    for folder in ("src", "tests"):
        for path in sorted((root / folder).rglob("*.c[cu]")):
            names.update(f"{suite}.{name}" for suite, name
                         in GTEST.findall(path.read_text(encoding="utf-8")))
    for path in sorted((root / "tests").rglob("*_test.py")):
        current = None
        for line in path.read_text(encoding="utf-8").splitlines():
            if found := PY_CLASS.match(line):
                current = found[1]
            elif (found := PY_TEST.match(line)) and current:
                names.add(f"{path.stem}.{current}.{found[1]}")
    names.update(f"compile_fail.{path.stem}"
                 for path in (root / "tests" / "compile_fail").glob("*.cc"))
    return names


def category_of(outcome, known, say):
    """The category of a row's last cell; None when it has no known form."""
    found = TESTS.fullmatch(outcome)
    for name in NAMED.findall(outcome):
        if name not in known:
            say(f"there is no test {name}")
    if found:
        for name in re.findall(r"`(\w+)`", found[1]):
            say(f"there is no test {name}")
        return "tested"
    if found := BY_DESIGN.fullmatch(outcome):
        for invariant in re.findall(r"I(\d+)", found[1]):
            if not 1 <= int(invariant) <= 12:
                say(f"there is no invariant I{invariant}")
        return "by design"
    if (found := LATER_FORM.fullmatch(outcome)) and found[1] in LATER:
        return f"later: {found[1]}"
    say(f"the last cell is neither tests, nor 'by design: I1: why' or 'by design: no X: why', "
        f"nor 'later: {'|'.join(LATER)}': {outcome}")
    return None


def check_row(line, known, counts, seen, problems):
    cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")]
    number = int(cells[0])
    say = lambda what: problems.append(f"row {number}: {what}")
    if len(cells) != 5:
        say(f"{len(cells)} cells, expected 5")
        return
    if number in seen:
        say("stands twice")
    seen.append(number)
    _, symptom, kinds, links, outcome = cells
    if not symptom:
        say("no symptom")
    for kind in kinds.split("/"):
        if kind not in KINDS:
            say(f"unknown kind {kind}")
    if not re.fullmatch(rf"{LINK.pattern}(?:, {LINK.pattern})*", links):
        say(f"no link: {links}")
    category = category_of(outcome, known, say)
    if category:
        counts[category] += 1


def format_cases(source):
    """(scheme, backend, fault, outcome, what it says) of each case in FORMAT_TESTS' tables."""
    cases = set()
    for fault, scheme, backend, slots, reason in FORMAT_CASE.findall(source):
        cases.add((scheme, BACKENDS.get(backend, backend.lower()),
                   re.sub(r"(?<=.)(?=[A-Z])", "-", fault).lower(), "RED" if slots else "refused",
                   ", ".join(re.findall(r'"([^"]+)"', slots)) or reason))
    return cases


def check_formats(text, source, known):
    """What is wrong with the section on formats."""
    section = FORMAT_SECTION.search(text)
    if not section:
        return ["there is no section on formats"]
    problems = [f"formats: there is no test {name}" for name in NAMED.findall(section[0])
                if name not in known]
    cases = format_cases(source)
    rows = FORMAT_ROW.findall(section[0])
    tabled = {(case[2], case[3]) for case in cases}
    for row in sorted(set(rows) - cases):
        scheme, _, fault, outcome, what = row
        # A fault that is in no table is tried on its own: its words stand in the test one by one.
        enumerator = "Kind::k" + "".join(word.capitalize() for word in fault.split("-"))
        words = [f'"{scheme}"', enumerator] + [f'"{slot}"' for slot in what.split(", ")]
        if (fault, outcome) in tabled or any(word not in source for word in words):
            problems.append(f"formats: {FORMAT_TESTS} does not try {' | '.join(row)}")
    problems += [f"formats: there is no row {' | '.join(case)}"
                 for case in sorted(cases - set(rows))]
    if len(rows) != len(set(rows)):
        problems.append("formats: a row stands twice")
    return problems


def check(root):
    """Everything that is wrong, and the counts of the table."""
    text = (root / "docs" / "field-cases.md").read_text(encoding="utf-8")
    known = tests_in(root)
    problems, seen = [], []
    counts = dict.fromkeys(CATEGORIES, 0)
    for line in text.splitlines():
        if re.match(r"\| \d+ \|", line):
            check_row(line, known, counts, seen, problems)
    for number in range(1, ROWS + 1):
        if number not in seen:
            problems.append(f"row {number}: missing")
    problems += [f"row {number}: there are rows 1 to {ROWS}" for number in seen
                 if not 1 <= number <= ROWS]
    if seen != sorted(seen):
        problems.append("the rows are not in order")
    source = (root / FORMAT_TESTS).read_text(encoding="utf-8")
    problems += check_formats(text, source, known)
    said = COUNT.findall(text)
    if [category for category, _ in said] != list(CATEGORIES):
        problems.append(f"the introduction counts {[c for c, _ in said]}, "
                        f"expected {list(CATEGORIES)}")
    for category, count in said:
        if int(count) != counts.get(category):
            problems.append(f"the introduction says {category} {count}, "
                            f"the table has {counts.get(category)}")
    return problems, counts


def main():
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parents[2]
    problems, counts = check(root)
    for problem in problems:
        print(f"docs/field-cases.md: {problem}")
    print(", ".join(f"{category} {count}" for category, count in counts.items()))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
