#include "schedules/pictures/text.h"

#include "base/table.h"
#include "schedules/pictures/axis.h"
#include "schedules/pictures/layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

namespace stagecraft {
namespace pictures {
namespace {

constexpr std::size_t kLeastColumns = 20;
// From so many columns on there is a place for "rank 0", for busy share and peak, for "rank 0: stage 0".
constexpr std::size_t kRoomForRank = 50, kRoomForFigures = 90, kRoomForNames = 110;
constexpr std::size_t kLongestName = 24;

/// A box of a row in whole columns.
struct Span {
  std::size_t begin, end;
  const Event* event;
};

class TextPicture {
 public:
  TextPicture(const Panel& panel, const TextOptions& options)
      : options_(options),
        columns_(std::max(kLeastColumns, to_size(std::max(0, options.columns)))),
        rows_(rows_of(panel, std::max<std::size_t>(1, options.most_rows))) {
    figures_ = columns_ >= kRoomForFigures;
    std::size_t longest = 0;
    for (const Row& row : rows_.rows) longest = std::max(longest, row.name.size());
    for (const Row& row : rows_.rows) {
      const bool names = columns_ >= kRoomForNames && longest <= kLongestName;
      const char* rank = columns_ >= kRoomForRank ? "rank " : "";
      labels_.push_back(names ? row.name : fmt::format("{}{}", rank, row.rank));
      label_ = std::max(label_, labels_.back().size());
      if (figures_) right_ = std::max(right_, figures_of(row).size());
    }
    plot_ = columns_ - label_ - 2 - (figures_ ? right_ + 1 : 0);
    if (rows_.end <= rows_.begin) rows_.end = rows_.begin + Seconds{1e-3};
  }

  std::string text() {
    std::string out;
    for (std::size_t i = 0; i < rows_.rows.size(); ++i) {
      const Row& row = rows_.rows[i];
      out += fmt::format("{:>{}}|{}|", labels_[i], label_, line(row));
      if (figures_) out += fmt::format(" {:>{}}", figures_of(row), right_);
      out += '\n';
    }
    if (rows_.rows.empty()) return out;
    return out + axis() + legend();
  }

 private:
  [[nodiscard]] std::string figures_of(const Row& row) const {
    std::string text = fmt::format("{:>7}", format_percent(row.busy / (rows_.end - rows_.begin)));
    if (row.memory != nullptr) text += fmt::format(" {:>10}", format_bytes(row.memory->peak()));
    return text;
  }

  [[nodiscard]] std::size_t column(Seconds at) const {
    const double part = (at - rows_.begin) / (rows_.end - rows_.begin);
    return static_cast<std::size_t>(std::lround(std::clamp(part, 0.0, 1.0) * static_cast<double>(plot_)));
  }

  std::string line(const Row& row) {
    std::string out;
    std::size_t at = 0;
    bool odd = false;
    for (const Event* event : row.events) {
      if (is_sent(style_of(*event))) continue;
      const Span span{std::max(at, column(event->begin)), column(event->end), event};
      if (span.end <= span.begin) continue;
      out.append(span.begin - at, ' ');
      odd = !odd;
      out += box(row, span, odd);
      at = span.end;
      used_.at(to_size(style_of(*event))) = true;
    }
    out.append(plot_ - at, ' ');
    return out;
  }

  std::string box(const Row& row, const Span& span, bool odd) {
    const EventStyle event_style = style_of(*span.event);
    const Style& style = style_of(event_style);
    const std::size_t width = span.end - span.begin;
    if (is_wait(event_style)) return std::string(width, '.');
    const bool computes = is_compute(span.event->action.op);
    const std::string number = computes ? std::to_string(span.event->action.micro_batch.value) : "";
    const bool second = computes && row.stage_position(*span.event) % 2 == 1;
    const char letter = second ? static_cast<char>(style.letter - 'A' + 'a') : style.letter;
    second_ = second_ || second;
    std::string inside(1, letter);
    if (number.size() + 1 <= width) inside += number;
    if (options_.colors && computes) inside = number.size() <= width ? number : "";
    inside.resize(width, options_.colors ? ' ' : style.filling);
    if (!options_.colors) return inside;
    // Neighbours of one kind stay apart: every other box is underlined.
    return fmt::format("\x1b[38;5;16;48;5;{}{}m{}\x1b[0m", second ? style.terminal_deep : style.terminal,
                       odd ? ";4" : "", inside);
  }

  [[nodiscard]] std::string axis() const {
    const Axis axis =
        axis_of(rows_.begin.value, rows_.end.value, std::max(1.0, static_cast<double>(plot_) / 9));
    const std::size_t left = label_ + 1;
    std::string ticks(left + plot_, ' ');
    std::string numbers;
    for (std::size_t i = 0; i < axis.ticks.size(); ++i) {
      const std::size_t at = left + std::min(column(axis.ticks[i]), plot_ - 1);
      ticks[at] = '\'';
      if (numbers.size() > at || at + axis.labels[i].size() > left + plot_ + right_) continue;
      numbers.resize(at, ' ');
      numbers += axis.labels[i];
    }
    ticks.erase(ticks.find_last_not_of(' ') + 1);
    return ticks + "\n" + numbers + "\n";
  }

  [[nodiscard]] std::string legend() const {
    std::string out;
    std::size_t width = 0;
    const auto add = [&](const std::string& shown, std::size_t size) {
      if (width > 0 && width + 2 + size > columns_) {
        out += '\n';
        width = 0;
      } else if (width > 0) {
        out += "  ";
        width += 2;
      }
      out += shown;
      width += size;
    };
    bool waits = false;
    for (std::size_t i = 0; i < kLooks; ++i) {
      const EventStyle event_style{static_cast<std::uint8_t>(i)};
      if (!used_.at(i)) continue;
      if (is_wait(event_style)) {
        waits = true;
        continue;
      }
      const Style& style = style_of(event_style);
      const std::string mark =
          options_.colors ? fmt::format("\x1b[38;5;16;48;5;{}m {} \x1b[0m", style.terminal, style.letter)
                          : std::string(1, style.letter);
      add(fmt::format("{} {}", mark, style.label),
          std::string_view(style.label).size() + (options_.colors ? 4 : 2));
    }
    if (waits) add(". wait", 6);
    if (second_) {
      const std::string which = options_.colors ? "darker" : "lower case";
      const std::string stages = which + ": every second of a rank's stages";
      add(stages, stages.size());
    }
    if (rows_.rows.size() < rows_.ranks) {
      const std::string some = fmt::format("{} of {} ranks", rows_.rows.size(), rows_.ranks);
      add(some, some.size());
    }
    return out + "\n";
  }

  const TextOptions& options_;
  std::size_t columns_;
  PanelLayout rows_;
  std::vector<std::string> labels_;
  bool figures_ = false;
  std::size_t label_ = 0, right_ = 0, plot_ = 0;
  std::array<bool, kLooks> used_{};
  bool second_ = false;
};

}  // namespace
}  // namespace pictures

std::string to_text(const Panel& panel, const TextOptions& options) {
  return pictures::TextPicture(panel, options).text();
}

}  // namespace stagecraft
