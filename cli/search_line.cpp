#include "cli/search_line.h"

#include "base/table.h"
#include "cli/output.h"

#include <fmt/format.h>

#include <cmath>

namespace stagecraft::cli {

SearchLine::~SearchLine() {
  if (drawn_) complain("\r\033[K");
}

void SearchLine::show(const SearchProgress& progress) {
  draw(fmt::format("searching: placement {} of {}{}", progress.tried + 1, progress.placements,
                   std::isinf(progress.best.value) ? "" : ", best step " + format_duration(progress.best)));
}

void SearchLine::show(const std::string& schedule, int tried, int all) {
  choosing_ = fmt::format("{} of {}, {}: ", tried + 1, all, schedule);
  draw("planning");
}

void SearchLine::draw(const std::string& text) {
  const auto now = Clock::now();
  if (!terminal_ || now - last_ < std::chrono::milliseconds(drawn_ ? 100 : 1000)) return;
  last_ = now;
  drawn_ = true;
  complain(fmt::format("\r{}{}\033[K", choosing_, text));
}

}  // namespace stagecraft::cli
