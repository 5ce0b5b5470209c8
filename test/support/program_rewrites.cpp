#include "test/support/program_rewrites.h"

#include <algorithm>
#include <deque>
#include <random>
#include <utility>

namespace stagecraft::test {
namespace {

/// Rewrites one rank's list.
class Splitter {
 public:
  Splitter(int most_behind, std::uint64_t seed) : most_behind_(most_behind), random_(seed) {}

  std::vector<Action> split(const std::vector<Action>& list) {
    for (const Action& action : list) {
      if (action.op == Op::step || action.op == Op::reduce || action.op == Op::tie ||
          action.op == Op::agree_norm)
        close(action);
      if (action.op != Op::backward) {
        out_.push_back(action);
        if (is_compute(action.op)) come_due();
        continue;
      }
      out_.push_back(action);
      out_.back().op = Op::backward_input;
      Action weight = action;
      weight.op = Op::backward_weight;
      waiting_.emplace_back(weight, static_cast<int>(random_() % static_cast<unsigned>(most_behind_ + 1)));
      come_due();
    }
    return std::move(out_);
  }

 private:
  /// One computation more is done: the oldest go where their time has come.
  void come_due() {
    for (auto& [action, computations] : waiting_) --computations;
    while (!waiting_.empty() && waiting_.front().second < 0) write(waiting_.begin());
  }
  /// Everything that belongs to what `closing` closes.
  void close(const Action& closing) {
    for (auto entry = waiting_.begin(); entry != waiting_.end();) {
      const bool all = closing.op == Op::agree_norm || closing.op == Op::tie;
      entry = all || entry->first.stage == closing.stage ? write(entry) : std::next(entry);
    }
  }
  std::deque<std::pair<Action, int>>::iterator write(std::deque<std::pair<Action, int>>::iterator entry) {
    out_.push_back(entry->first);
    return waiting_.erase(entry);
  }

  int most_behind_;
  std::mt19937_64 random_;
  std::deque<std::pair<Action, int>> waiting_;  // weight halves, and computations until they are due
  std::vector<Action> out_;
};

}  // namespace

void split_backwards(ScheduleProgram& program, int most_behind, std::uint64_t seed) {
  for (auto& list : program.ranks) list = Splitter(most_behind, seed++).split(list);
}

}  // namespace stagecraft::test
