#!/usr/bin/env python3
"""Checks docs/field-cases.md against the tests that exist.

usage: check_field_cases.py [ROOT]

Prints one line for each thing that is wrong and exits with 1 when there is one:
a row that is missing, stands twice or has another form; a test that no source has; a reason that
names neither an invariant nor a structure; a count in the introduction that the table belies.
Python's standard library only.
"""

import re
import sys
from pathlib import Path

ROWS = 96
KINDS = {"ID", "DV", "LD", "ST", "RT", "NM", "CC", "TX", "TR", "SL", "VR", "DR", "HG"}
LATER = ("server", "GPU", "formats")
CATEGORIES = ("tested", "by design") + tuple(f"later: {what}" for what in LATER)

GTEST = re.compile(r"^(?:TEST|TEST_F|TEST_P|TYPED_TEST|RC_GTEST_PROP|RC_GTEST_FIXTURE_PROP)"
                   r"\(\s*(\w+)\s*,\s*(\w+)", re.M)
PY_CLASS = re.compile(r"^class (\w+)")
PY_TEST = re.compile(r"^    def (test_\w+)")
LINK = re.compile(r"\[[^\]\s]+\]\(https://[^)\s]+\)")
TESTS = re.compile(r"(`[\w.]+`(?:, `[\w.]+`)*)(?:: \S.*)?")
BY_DESIGN = re.compile(r"by design: (I\d+(?:, I\d+)*|no [^:]+): \S.*")
LATER_FORM = re.compile(r"later: (\w+)(?:: \S.*)?")
COUNT = re.compile(r"^\| (tested|by design|later: \w+) \| (\d+) \|", re.M)


def tests_in(root):
    """Names of all tests: Suite.Name, script.Class.test_name, compile_fail.name."""
    names = set()
    for folder in ("src", "tests"):
        for path in sorted((root / folder).rglob("*.cc")):
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
    if found := TESTS.fullmatch(outcome):
        for name in re.findall(r"`([\w.]+)`", found[1]):
            if name not in known:
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
        f"nor 'later: server|GPU|formats': {outcome}")
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
