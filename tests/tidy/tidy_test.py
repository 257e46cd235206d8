"""tools/tidy finds each breach of each rule, and nothing in a tree that keeps them."""

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

TIDY = Path(__file__).resolve().parent.parent.parent / "tools" / "tidy"
HEADER = "// A thing. Any thread.\n#pragma once\n"


class TidyTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.root = Path(self.folder.name)

    def tearDown(self):
        self.folder.cleanup()

    def write(self, path, text):
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text.encode("utf-8"))

    def tidy(self, *arguments):
        """(exit status, the breaches as (place, rule))."""
        done = subprocess.run([sys.executable, "-B", TIDY, "--root", self.root, *arguments],
                              capture_output=True, text=True, check=False)
        self.assertEqual(done.stderr, "")
        found = [line.split(": ")[:2] for line in done.stdout.splitlines()[:-1]]
        return done.returncode, [(place, rule) for place, rule in found]

    def expect(self, *breaches, arguments=()):
        status, found = self.tidy(*arguments)
        self.assertEqual(found, list(breaches))
        self.assertEqual(status, 1 if breaches else 0)

    def test_a_tree_that_keeps_the_rules_passes(self):
        self.write("src/storage/slot.h", HEADER + '#include <vector>\n#include "device/arena.h"\n')
        self.write("src/storage/slot.cc", '#include "storage/slot.h"\nint f() { return 1; }\n')
        self.write("include/holdfast/a.h", HEADER + '#include <span>\n#include "holdfast/b.h"\n')
        self.write("cli/main.cc", '#include "cli/x.h"\n#include "holdfast/a.h"\n')
        self.write("src/ops/cpu/f.cc", '#include "hwy/highway.h"\n#include "ops/ops.h"\n')
        self.expect()

    def test_sizes_are_bounded_by_the_kind_of_file(self):
        for path, limit in (("src/base/a.h", 250), ("src/base/b.cc", 500),
                            ("src/base/c_test.cc", 700), ("src/ops/cuda/d.cu", 700)):
            start = HEADER if path.endswith(".h") else ""
            lines = limit - start.count("\n")
            self.write(path, start + "\n" * lines)
            self.expect()
            self.write(path, start + "\n" * (lines + 1))
            self.expect((path + ":1", "size"))
            (self.root / path).unlink()

    def test_a_function_of_71_lines_is_found_wherever_it_stands(self):
        body = "  go();\n" * 69
        for head, place in (("int f(int a) {", 2), ("TEST(A, B) {", 2), ("void A::f() const {", 2)):
            self.write("src/base/a.cc", "// A.\n" + head + "\n" + body + "}\n")
            self.expect((f"src/base/a.cc:{place}", "function"))
            shorter = body.replace("  go();\n", "", 1)
            self.write("src/base/a.cc", "// A.\n" + head + "\n" + shorter + "}\n")
            self.expect()
        nested = "namespace a {\nclass B {\n public:\n  int f() {\n" + body + "  }\n};\n}\n"
        self.write("src/base/a.cc", nested)
        self.expect(("src/base/a.cc:4", "function"))

    def test_a_long_class_or_table_is_no_long_function(self):
        rows = '  {"(", 1},\n' * 90
        self.write("src/base/a.cc", "struct A {\n" + "  int a();\n" * 90 + "};\n"
                   "const B kTable[] = {\n" + rows + "};\n"
                   "const auto kOther = make({\n" + rows + "});\n")
        self.expect()

    def test_braces_in_strings_comments_and_macros_do_not_count(self):
        self.write("src/base/a.cc", 'const char* a() { return "{"; }  // {\n'
                   'char b() { return \'{\'; }\n/* { */\n#define C {\n'
                   'auto d() { return R"({)"; }\n' + "int e();\n" * 80 + "int f() { return 1; }\n")
        self.expect()

    def test_a_sixth_parameter_is_found_and_commas_within_types_are_none(self):
        self.write("src/base/a.cc", "int f(int a, int b, int c, int d, int e, int g) {\n}\n")
        self.expect(("src/base/a.cc:1", "parameters"))
        self.write("src/base/a.cc", "std::map<int, int> f(std::map<int, int> a, int b, int c,\n"
                   "    std::function<void(int, int)> d, int e) {\n}\n")
        self.expect()

    def test_columns_and_whitespace(self):
        self.write("src/base/a.cc", "// " + "é" * 97 + "\n")
        self.expect()
        self.write("src/base/a.cc", "// " + "é" * 98 + "\n")
        self.expect(("src/base/a.cc:1", "columns"))
        self.write("src/base/a.cc", "int\ta;\nint b; \nint c;\r\nint d;")
        self.expect(*[(f"src/base/a.cc:{line}", "whitespace") for line in (4, 1, 2, 3)])

    def test_includes_go_only_downwards(self):
        for path, name in (("src/base/a.cc", "tensor/shape.h"), ("src/ops/a.cc", "storage/slot.h"),
                           ("src/checkpoint/a.cc", "device/device.h"),
                           ("src/model/a.cc", "checkpoint/checkpoint.h"),
                           ("src/reload/a.cc", "engine/engine.h"),
                           ("src/drill/a.cc", "storage/census.h"),
                           ("cli/a.cc", "base/error.h"), ("src/invented/a.cc", "base/error.h")):
            self.write(path, f'// A.\n#include "{name}"\n')
            self.expect((path + ":2", "include"))
            (self.root / path).unlink()

    def test_cuda_headers_stay_in_the_cuda_folders(self):
        self.write("src/ops/cuda/a.cc", "#include <cuda_runtime.h>\n")
        self.expect()
        self.write("src/ops/cpu/a.cc", "#include <cuda_runtime.h>\n")
        self.expect(("src/ops/cpu/a.cc:1", "cuda"))

    def test_public_headers_show_no_third_party(self):
        for name in ("<fmt/format.h>", "<simdjson.h>", '"base/error.h"'):
            self.write("include/holdfast/a.h", HEADER + f"#include {name}\n")
            self.expect(("include/holdfast/a.h:3", "public"))

    def test_a_header_says_what_it_is_and_is_included_once(self):
        self.write("src/base/a.h", "#pragma once\n")
        self.expect(("src/base/a.h:1", "header"))
        self.write("src/base/a.h", "// A thing.\n")
        self.expect(("src/base/a.h:1", "header"))

    def test_unfinished_work_machine_paths_and_catch_all_folders(self):
        self.write("docs/a.md", "TO" + "DO\n")
        self.expect(("docs/a.md:1", "words"))
        self.write("docs/a.md", "see /ho" + "me/someone/x\n")
        self.expect(("docs/a.md:1", "path"))
        self.write("docs/a.md", "fine: https://example.org/home/x\n")
        self.write("src/base/util/a.cc", "int a;\n")
        self.expect(("src/base/util:1", "folder"))

    def test_the_build_links_what_may_be_included(self):
        self.write("CMakeLists.txt", "hf_folder(ops DEPS device LINK hwy::hwy)\n")
        self.expect()
        self.write("CMakeLists.txt", "hf_folder(ops DEPS device storage)\n")
        self.expect(("CMakeLists.txt:1", "cmake"))

    def test_an_exception_covers_its_breach_up_to_its_limit(self):
        self.write("src/base/a.cc", "\n" * 510)
        self.write("tools/tidy-exceptions.txt", "src/base/a.cc size 510 # a reason\n")
        self.expect(arguments=("--exceptions-at-most", "1"))
        self.write("src/base/a.cc", "\n" * 511)
        self.expect(("src/base/a.cc:1", "size"), ("tools/tidy-exceptions.txt:1", "exception"),
                    arguments=("--exceptions-at-most", "1"))

    def test_the_exceptions_list_only_shrinks(self):
        self.write("src/base/a.cc", "\n" * 510)
        listed = "tools/tidy-exceptions.txt:1"
        for line, at_most in (("src/base/a.cc size 520", "1"), ("src/base/b.cc size 510", "1"),
                              ("src/base/a.cc size 510", "0")):
            self.write("tools/tidy-exceptions.txt", line + "\n")
            status, found = self.tidy("--exceptions-at-most", at_most)
            self.assertEqual(status, 1)
            self.assertIn((listed, "exception"), found)


if __name__ == "__main__":
    unittest.main()
