#include "base/wrapped.h"

#include "test/support/catch.h"

using stagecraft::wrapped;

TEST_CASE("prose is broken at blanks, and goes on two columns further in", "[wrapped]") {
  CHECK(wrapped("", 10).empty());
  CHECK(wrapped("short\n\n  lines\n", 10) == "short\n\n  lines\n");
  CHECK(wrapped("one two three four", 10) == "one two\n  three\n  four");
  CHECK(wrapped("  one two three\nfour", 10) == "  one two\n    three\nfour");
  CHECK(wrapped("ä ä ä ä ä ä", 11) == "ä ä ä ä ä ä");
  CHECK(wrapped("averyveryverylongword and more", 10) == "averyveryverylongword\n  and more");
  CHECK(wrapped("run `stagecraft plan CONFIG -o plan.json` now", 20) ==
        "run\n  `stagecraft plan CONFIG -o plan.json`\n  now");
  CHECK(wrapped("a `tick alone b", 8) == "a\n  `tick alone b");
  CHECK(wrapped("one two three", 0) == "one two three");
}
