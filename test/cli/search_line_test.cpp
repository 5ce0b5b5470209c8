// What is said while a search takes long: on a terminal, and into a log.

#include "cli/search_line.h"

#include "test/support/catch.h"

#include <chrono>
#include <string>

using namespace stagecraft;
using namespace stagecraft::cli;
using namespace std::chrono_literals;

namespace {

struct Searching {
  SearchLine::Clock::time_point now{};
  std::string written;

  [[nodiscard]] SearchLine::Way way(bool terminal) {
    return {terminal, [this](const std::string& text) { written += text; }, [this] { return now; }};
  }
};

}  // namespace

TEST_CASE("a terminal sees a search that takes a second, and nothing of it in the end", "[search_line]") {
  Searching search;
  {
    SearchLine line(search.way(true));
    line.show("1f1b", 0, 2);
    search.now += 900ms;
    line.show({.tried = 1, .placements = 4, .best = Seconds{0.5}});
    CHECK(search.written.empty());
    search.now += 100ms;
    line.show({.tried = 1, .placements = 4, .best = Seconds{0.5}});
    CHECK(search.written == "\r1 of 2, 1f1b: searching: placement 2 of 4, best step 500.00 ms\033[K");
  }
  CHECK(search.written.ends_with("\r\033[K"));
}

TEST_CASE("a log gets a line every half a minute of a search", "[search_line]") {
  Searching search;
  {
    SearchLine line(search.way(false));
    line.begin("measuring");
    for (int schedule = 0; schedule < 13; ++schedule) {
      search.now += 5s;
      line.show("zb_v", schedule, 13);
    }
  }
  CHECK(search.written ==
        "stagecraft: 6 of 13, zb_v: planning\n"
        "stagecraft: 12 of 13, zb_v: planning\n");
}

TEST_CASE("what takes seconds without a word is announced on a terminal alone", "[search_line]") {
  Searching search;
  { SearchLine(search.way(true)).begin("measuring"); }
  CHECK(search.written == "\rmeasuring\033[K\r\033[K");
  search.written.clear();
  { SearchLine(search.way(false)).begin("measuring"); }
  CHECK(search.written.empty());
}
