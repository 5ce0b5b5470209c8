#include "schedules/interchange/pytorch_csv.h"

#include "base/json.h"
#include "base/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

namespace stagecraft {
namespace {

constexpr std::string_view kOverlap = "OVERLAP_F_B";

[[nodiscard]] bool has_micro_batch(PytorchOp op) { return op < PytorchOp::unshard; }

[[nodiscard]] bool is_compute(PytorchOp op) { return compute_op(op).has_value(); }

constexpr std::array kComputes{std::pair{PytorchOp::forward, Op::forward},
                               std::pair{PytorchOp::backward, Op::backward},
                               std::pair{PytorchOp::backward_input, Op::backward_input},
                               std::pair{PytorchOp::backward_weight, Op::backward_weight}};

[[nodiscard]] bool has_between(const std::vector<std::vector<PytorchAction>>& rows, PytorchOp first,
                               PytorchOp last) {
  return std::ranges::any_of(rows, [&](const auto& row) {
    return std::ranges::any_of(
        row, [&](const PytorchAction& action) { return action.op >= first && action.op <= last; });
  });
}

class PytorchCsvReader {
 public:
  explicit PytorchCsvReader(const std::string& file) : file_(file) {}

  PytorchSchedule read(std::string_view text) {
    const std::size_t first_end = std::min(text.find('\n'), text.size());
    schedule_.crlf = first_end > 0 && text[first_end - 1] == '\r';
    while (!text.empty()) {
      schedule_.rows.emplace_back();
      cell_ = 0;
      read_row(take_until(text, "\n"));
    }
    if (schedule_.rows.empty())
      throw InputError({file_, "line 1"}, "expected a rank's actions, found an empty file");
    check_stages();
    check_neighbours();
    return std::move(schedule_);
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw InputError({file_, fmt::format("line {}, cell {}", schedule_.rows.size(), cell_)}, what);
  }

  void read_row(std::string_view line) {
    // A comma at the end is followed by one more cell, as an empty one. Python's reader strips blanks as well.
    bool more = true;
    while (more) {
      ++cell_;
      more = line.find(',') != std::string_view::npos;
      read_cell(trimmed(take_until(line, ",")));
    }
  }

  void read_cell(std::string_view cell) {
    if (cell.size() >= 2 && cell.front() == '"' && cell.back() == '"') {
      cell = trimmed(cell.substr(1, cell.size() - 2));
    }
    if (cell.empty()) return add({});
    if (cell.front() != '(') return add(action_of(cell));
    const std::size_t close = cell.find(')');
    std::string_view inside = cell.substr(1, std::min(close, cell.size()) - 1);
    if (close == std::string_view::npos || cell.substr(close + 1) != kOverlap ||
        inside.find(';') == inside.npos) {
      refuse(fmt::format("expected actions at once as (0F7;3B3){}, found {}", kOverlap, json::brief(cell)));
    }
    while (!inside.empty()) {
      PytorchAction action = action_of(trimmed(take_until(inside, ";")));
      if (!is_compute(action.op))
        refuse(fmt::format("only forwards and backwards overlap, found {}", json::brief(cell)));
      action.overlaps_next = !inside.empty();
      add(action);
    }
  }

  void add(const PytorchAction& action) {
    if (++actions_ > kMaxActions)
      refuse(fmt::format("expected at most {} actions in a schedule", kMaxActions));
    schedule_.rows.back().push_back(action);
    if (!is_compute(action.op)) return;
    const std::size_t row = schedule_.rows.size() - 1;
    const auto [known, fresh] = row_of_.try_emplace(action.stage, row);
    if (!fresh && known->second != row) {
      refuse(fmt::format("stage {} is computed in line {} already; a stage lies on one rank",
                         action.stage.value, known->second + 1));
    }
    micro_batches_ = std::max(micro_batches_, action.micro_batch.value + 1);
  }

  PytorchAction action_of(std::string_view cell) const {
    std::string_view rest = cell;
    const auto stage = take_number(rest);
    const std::string_view word = rest.substr(0, std::min(rest.find_first_of("0123456789"), rest.size()));
    rest.remove_prefix(word.size());
    const auto op = enum_named<PytorchOp>(word);
    const auto micro_batch = take_number(rest);
    if (word == "BW") {
      refuse(fmt::format(
          "{}: BW is an older spelling; today B is the whole backward, I its input part and W its "
          "weight part",
          json::brief(cell)));
    }
    if (!stage || word.empty() || !op || !rest.empty() || micro_batch.has_value() != has_micro_batch(*op)) {
      refuse(
          fmt::format("expected an action such as 0F0, 1SEND_F3 or 2UNSHARD, found {}", json::brief(cell)));
    }
    if (micro_batch && *micro_batch >= kMaxMicroBatches) {
      refuse(fmt::format("{}: expected at most {} micro-batches", cell, kMaxMicroBatches));
    }
    return {.op = *op,
            .stage = StageId{*stage},
            .micro_batch = micro_batch ? MicroBatch{*micro_batch} : MicroBatch{}};
  }

  /// Every stage from 0 to the last is computed somewhere, and every rank computes one.
  void check_stages() const {
    std::int32_t next = 0;
    std::vector<bool> busy(schedule_.rows.size(), false);
    for (const auto& [stage, row] : row_of_) {
      if (stage.value != next) {
        throw InputError({file_, ""}, fmt::format("no rank computes stage {}, but line {} computes stage {}",
                                                  next, row + 1, stage.value));
      }
      ++next;
      busy[row] = true;
    }
    const auto idle = std::find(busy.begin(), busy.end(), false);
    if (idle == busy.end()) return;
    throw InputError({file_, fmt::format("line {}", idle - busy.begin() + 1)},
                     "computes nothing; expected the actions of a rank, forwards or backwards among them");
  }

  /// Transfers and FSDP's actions are about a stage of this rank, a micro-batch there is, and a boundary to
  /// another rank. Known only when all rows are.
  void check_neighbours() {
    auto rows = std::move(schedule_.rows);
    schedule_.rows.clear();
    for (auto& row : rows) {
      schedule_.rows.push_back(std::move(row));
      cell_ = 1;
      for (const PytorchAction& action : schedule_.rows.back()) {
        if (action.op != PytorchOp::idle && !is_compute(action.op)) check_neighbour(action);
        if (!action.overlaps_next) ++cell_;
      }
    }
  }

  void check_neighbour(const PytorchAction& action) const {
    const auto stage = action.stage.value;
    const auto say = [&](const std::string& what) {
      refuse(fmt::format("{}{}{}: {}", stage, enum_name(action.op),
                         action.micro_batch.valid() ? std::to_string(action.micro_batch.value) : "", what));
    };
    const auto own = row_of_.find(action.stage);
    const std::size_t here = schedule_.rows.size() - 1;
    if (own == row_of_.end()) say(fmt::format("stage {} is none of the {} stages", stage, row_of_.size()));
    if (own->second != here) say(fmt::format("stage {} is computed in line {}", stage, own->second + 1));
    if (!has_micro_batch(action.op)) return;
    if (action.micro_batch.value >= micro_batches_) {
      say(fmt::format("micro-batch {} is none of the {} micro-batches", action.micro_batch.value,
                      micro_batches_));
    }
    const bool downwards = action.op == PytorchOp::send_forward || action.op == PytorchOp::receive_backward ||
                           action.op == PytorchOp::wait_send_forward;
    const auto other = row_of_.find(StageId{downwards ? stage + 1 : stage - 1});
    if (other == row_of_.end()) say(fmt::format("stage {} has no neighbour there", stage));
    if (other->second == here)
      say(fmt::format("stage {} is on the same rank: nothing is sent", other->first.value));
  }

  const std::string& file_;
  PytorchSchedule schedule_;
  std::size_t cell_ = 0;  ///< of the last row, from 1 on
  std::int64_t actions_ = 0;
  std::map<StageId, std::size_t> row_of_;
  std::int32_t micro_batches_ = 0;
};

void append(std::string& text, const PytorchAction& action) {
  if (action.op == PytorchOp::idle) return;
  text += std::to_string(action.stage.value);
  text += enum_name(action.op);
  if (action.micro_batch.valid()) text += std::to_string(action.micro_batch.value);
}

}  // namespace

std::optional<Op> compute_op(PytorchOp op) {
  const auto* const found = std::ranges::find(kComputes, op, &std::pair<PytorchOp, Op>::first);
  return found == kComputes.end() ? std::nullopt : std::optional(found->second);
}

std::optional<PytorchOp> pytorch_op(Op op) {
  const auto* const found = std::ranges::find(kComputes, op, &std::pair<PytorchOp, Op>::second);
  return found == kComputes.end() ? std::nullopt : std::optional(found->first);
}

bool PytorchSchedule::has_communication() const {
  return has_between(rows, PytorchOp::send_forward, PytorchOp::wait_send_backward);
}

bool PytorchSchedule::states_waits() const {
  return has_between(rows, PytorchOp::wait_send_forward, PytorchOp::wait_send_backward);
}

PytorchSchedule pytorch_schedule_from_csv(const std::string& text, const std::string& file) {
  return PytorchCsvReader(file).read(text);
}

std::string to_csv(const PytorchSchedule& schedule) {
  std::string text;
  for (const auto& row : schedule.rows) {
    bool joined = false;
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (i > 0) text += joined ? ';' : ',';
      if (row[i].overlaps_next && !joined) text += '(';
      append(text, row[i]);
      if (joined && !row[i].overlaps_next) text += fmt::format("){}", kOverlap);
      joined = row[i].overlaps_next;
    }
    text += schedule.crlf ? "\r\n" : "\n";
  }
  return text;
}

}  // namespace stagecraft
