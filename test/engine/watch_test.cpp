// What `watch` serves beside the page: the terminal's text, and who may ask. The rest:
// test/scripts/watch_test.py.

#include "engine/records/view/run_view.h"
#include "engine/records/watch/screen_text.h"
#include "engine/records/watch/server.h"
#include "test/support/catch.h"
#include "test/support/command.h"

#include <sstream>

namespace stagecraft {
namespace {

Json document_of_run(const std::string& run_dir) {
  std::vector<RunView> runs;
  runs.emplace_back(run_dir);
  while (!runs.front().follow(std::size_t{1} << 20U)) continue;
  return document_of(runs, /*live=*/false);
}

}  // namespace

TEST_CASE("a terminal gets the essentials of a run, in lines that fit it", "[watch]") {
  for (const int columns : {100, 66}) {
    const std::string text = screen_text(document_of_run(STAGECRAFT_TEST_DATA "/run"), columns);
    INFO(text);
    for (const char* part :
         {"finished", "step 6 of 6", "100.0 %", "newest checkpoint: none", "rank 1 |", "FFF", "BBB"})
      CHECK(test::says(text, part));
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);)
      CHECK(line.size() <= static_cast<std::size_t>(columns));
  }
}

TEST_CASE("a terminal is told of a run that has not begun", "[watch]") {
  CHECK(
      test::says(screen_text(document_of_run("no/such/folder"), 100), "no/such/folder: not begun\n  step 0"));
}

TEST_CASE("a secret is the same as itself alone", "[watch]") {
  CHECK(same_secret("0123abcd", "0123abcd"));
  for (const char* other : {"", "0", "0123abcc", "0123abcd0", "0123abcd0123abcd", "1123abcd"})
    CHECK_FALSE(same_secret("0123abcd", other));
}

}  // namespace stagecraft
