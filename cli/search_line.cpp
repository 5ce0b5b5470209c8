#include "cli/search_line.h"

#include "base/table.h"
#include "cli/output.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <unistd.h>

namespace stagecraft::cli {
namespace {

constexpr std::chrono::milliseconds kFirst{1000}, kNext{100};
constexpr std::chrono::seconds kLogged{30};

}  // namespace

SearchLine::Way SearchLine::standard_error() {
  return {::isatty(STDERR_FILENO) == 1, [](const std::string& text) { complain(text); }, &Clock::now};
}

SearchLine::~SearchLine() {
  if (drawn_) way_.write("\r\033[K");
}

void SearchLine::show(const SearchProgress& progress) {
  draw(fmt::format("searching: placement {} of {}{}", std::min(progress.tried + 1, progress.placements),
                   progress.placements,
                   std::isinf(progress.best.value) ? "" : ", best step " + format_duration(progress.best)));
}

void SearchLine::show(const std::string& schedule, int tried, int all) {
  choosing_ = fmt::format("{} of {}, {}: ", tried + 1, all, schedule);
  draw("planning");
}

void SearchLine::begin(const std::string& what) {
  choosing_ = what;
  if (!way_.terminal) return;
  drawn_ = true;
  way_.write(fmt::format("\r{}\033[K", what));
}

void SearchLine::draw(const std::string& text) {
  const auto now = way_.now();
  const Clock::duration pause = !way_.terminal ? kLogged : drawn_ ? kNext : kFirst;
  if (now - last_ < pause) return;
  last_ = now;
  drawn_ = way_.terminal;
  way_.write(way_.terminal ? fmt::format("\r{}{}\033[K", choosing_, text)
                           : fmt::format("stagecraft: {}{}\n", choosing_, text));
}

}  // namespace stagecraft::cli
