#include "engine/run/show/progress.h"

#include "base/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace stagecraft {

std::optional<Seconds> time_left(std::int64_t first, std::int64_t step, std::int64_t steps, Seconds elapsed) {
  if (step <= first || step >= steps) return std::nullopt;
  return elapsed * (static_cast<double>(steps - step) / static_cast<double>(step - first));
}

std::string progress_text(std::int64_t first, std::int64_t step, std::int64_t steps, Seconds elapsed) {
  constexpr std::int64_t kWidth = 30;
  const double share = steps > 0 ? static_cast<double>(step) / static_cast<double>(steps) : 1.0;
  const auto full = std::clamp<std::int64_t>(static_cast<std::int64_t>(share * kWidth), 0, kWidth);
  std::string bar(static_cast<std::size_t>(full), '=');
  if (full < kWidth) bar += '>';
  bar.resize(kWidth, ' ');
  std::string text = fmt::format("[{}] {}/{}  {}", bar, step, steps, format_percent(share));
  if (const auto left = time_left(first, step, steps, elapsed))
    text += fmt::format("  {} left", format_duration(*left));
  return text;
}

ProgressBar::ProgressBar(std::int64_t first_step, std::int64_t steps, Print draw)
    : first_(first_step), steps_(steps), draw_(std::move(draw)) {}

ProgressBar::~ProgressBar() { clear(); }

void ProgressBar::update(std::int64_t step, Seconds elapsed) {
  if (!draw_ || (last_.value >= 0 && elapsed - last_ < Seconds{0.1})) return;
  last_ = elapsed;
  drawn_ = true;
  draw_(fmt::format("\r{}\033[K", progress_text(first_, step, steps_, elapsed)));
}

void ProgressBar::clear() {
  if (!drawn_) return;
  drawn_ = false;
  draw_("\r\033[K");
}

}  // namespace stagecraft
