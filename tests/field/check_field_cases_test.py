"""check_field_cases.py finds each way in which the table can be wrong, and accepts a right one."""

import tempfile
import unittest
from pathlib import Path

import check_field_cases

LINK = "[V#1](https://example.org/1)"
FORMAT_TESTS = """{Kind::kStaleIndex, "int4 a", B::kMarlin,
 {"up.index", "down.index"}},
{Kind::kNoShuffle, "bf16", B::kUnquantised, "moves no units"},
reload(Kind::kRebuiltWorkspace) "mxfp4" "locks"
"""
FORMAT_ROWS = """## Formats: scheme x fault x outcome
`Suite.Name`
| int4 a | marlin-like | stale-index | RED: up.index, down.index |
| bf16 | unquantised | no-shuffle | refused: moves no units |
| mxfp4 | marlin-like | rebuilt-workspace | RED: locks |
"""


class CheckTest(unittest.TestCase):

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.root = Path(self.folder.name)
        self.write("src/a/a_test.cc",
                   "TEST(Suite, Name) {\n}\nTEST_P(Suite,\n       Wrapped) {\n}\n")
        self.write("tests/cli/x_test.py", "class X(Case):\n\n    def test_y(self):\n        pass\n")
        self.write("tests/compile_fail/z.cc", "int main() {}\n")
        self.write("src/a/cuda/b_test.cu", "TEST(CudaSuite, Name) {\n}\n")
        self.write("tests/formats/reload_test.cc", FORMAT_TESTS)

    def write(self, path, text):
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")

    def rows(self):
        """A right table: one row of each form, the rest tested."""
        rows = {n: [str(n), "it breaks", "ID/HG", LINK, "`Suite.Name`"] for n in range(1, 97)}
        rows[2][4] = "`Suite.Wrapped`, `x_test.X.test_y`, `compile_fail.z`: what they show"
        rows[3][4] = "by design: I1, I12: nothing moves"
        rows[4][4] = "by design: no adapters: there is one set of weights"
        rows[5][4] = "later: server"
        rows[6][4] = "later: transport: needs two processes"
        rows[7][4] = "`Suite.Name`, `CudaSuite.Name`"
        rows[8][3] = f"{LINK}, {LINK}"
        return rows

    def problems(self, rows, tested=92, formats=FORMAT_ROWS):
        counts = (("tested", tested), ("by design", 2), ("later: server", 1),
                  ("later: transport", 1))
        lines = [f"| {category} | {count} |" for category, count in counts]
        lines += ["| " + " | ".join(cells) + " |" for cells in rows]
        self.write("docs/field-cases.md", "\n".join(lines) + "\n\n" + formats)
        return check_field_cases.check(self.root)[0]

    def expect(self, number, cell, text, *words, tested=92):
        rows = self.rows()
        rows[number][cell] = text
        problems = self.problems(rows.values(), tested)
        self.assertEqual(len(problems), 1, problems)
        for word in (f"row {number}:",) + words:
            self.assertIn(word, problems[0])

    def test_a_right_table_passes(self):
        self.assertEqual(self.problems(self.rows().values()), [])

    def test_a_test_that_does_not_exist_is_named(self):
        for name in ("Suite.Nam", "Suite.Name2", "x_test.X.test_z", "compile_fail.y"):
            self.expect(9, 4, f"`Suite.Name`, `{name}`", name)
        self.expect(9, 4, "`Suite`", "Suite")
        self.expect(3, 4, "by design: I1: nothing moves (`Suite.Nam`)", "Suite.Nam")

    def test_a_missing_or_doubled_row_is_named(self):
        rows = self.rows()
        del rows[50]
        self.assertEqual(self.problems(rows.values(), tested=91), ["row 50: missing"])
        rows = list(self.rows().values())
        rows.insert(50, rows[49])
        self.assertEqual(self.problems(rows, tested=93), ["row 50: stands twice"])
        rows = list(self.rows().values()) + [["97", "it breaks", "ID", LINK, "`Suite.Name`"]]
        self.assertEqual(self.problems(rows, tested=93), ["row 97: there are rows 1 to 96"])
        rows = list(self.rows().values())
        rows[20], rows[21] = rows[21], rows[20]
        self.assertEqual(self.problems(rows), ["the rows are not in order"])

    def test_a_wrong_count_is_named(self):
        problems = self.problems(self.rows().values(), tested=91)
        self.assertEqual(problems, ["the introduction says tested 91, the table has 92"])

    def test_counts_that_are_not_there_are_named(self):
        self.problems(self.rows().values())
        path = self.root / "docs/field-cases.md"
        path.write_text(path.read_text().replace("| later: transport | 1 |\n", ""))
        problems = check_field_cases.check(self.root)[0]
        self.assertEqual(len(problems), 1)
        self.assertIn("the introduction counts", problems[0])

    def test_a_cell_of_another_form_is_named(self):
        self.expect(9, 1, "", "no symptom")
        self.expect(9, 2, "XY", "unknown kind XY")
        self.expect(9, 3, "V#1", "no link")
        for text in ("Suite.Name", "by design", "by design: it cannot happen", "later: someday",
                     "`Suite.Name` and more"):
            self.expect(9, 4, text, "the last cell is neither", tested=91)
        rows = self.rows()
        rows[3][4] = "by design: I13: nothing moves"
        self.assertEqual(self.problems(rows.values()), ["row 3: there is no invariant I13"])

    def test_formats_have_the_cases_of_their_test_and_no_others(self):
        rows = list(self.rows().values())
        for old, new, words in (
                ("up.index, down", "down", ["does not try int4 a", "no row int4 a"]),
                ("| bf16", "| f16", ["does not try f16", "no row bf16"]),
                ("locks", "other", ["does not try mxfp4"]),
                ("`Suite.Name`", "`Suite.Nam`", ["there is no test Suite.Nam"]),
                ("## Formats", "## Else", ["there is no section on formats"])):
            problems = self.problems(rows, formats=FORMAT_ROWS.replace(old, new))
            self.assertEqual(len(problems), len(words), problems)
            for problem, word in zip(problems, words):
                self.assertIn(word, problem)
        doubled = FORMAT_ROWS + FORMAT_ROWS.splitlines()[2] + "\n"
        self.assertEqual(self.problems(rows, formats=doubled), ["formats: a row stands twice"])


if __name__ == "__main__":
    unittest.main()
