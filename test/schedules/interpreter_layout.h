#pragma once

// Who holds what in the interpreter's programs: the placement read afresh, not through the code under test.

#include "schedules/program/program.h"
#include "test/schedules/interpreter.h"

#include <cstddef>
#include <stdexcept>
#include <utility>

namespace stagecraft::test {

/// Thrown for whatever an engine could not carry out, or would carry out wrongly.
struct Wrong : std::runtime_error {
  using std::runtime_error::runtime_error;
};

inline void require(bool holds, const char* what) {
  if (!holds) throw Wrong(what);
}

class Layout {
 public:
  explicit Layout(const LoweredProgram& program) : program_(program) {
    for (const int size : program_.group_sizes) total_ += size;
  }

  [[nodiscard]] int stages() const { return static_cast<int>(program_.placement.ranks.size()); }
  [[nodiscard]] bool last(int stage) const { return stage == stages() - 1; }
  [[nodiscard]] int micro_batches() const { return total_; }

  void require_work(int stage, int mb) const {
    require(stage >= 0 && stage < stages() && mb >= 0 && mb < total_, "stage or micro-batch out of range");
  }

  /// The rank that has the micro-batch on that stage.
  [[nodiscard]] int owner(int stage, int mb) const {
    require_work(stage, mb);
    const auto& replicas = program_.placement.ranks[static_cast<std::size_t>(stage)];
    return replicas[static_cast<std::size_t>(mb) % replicas.size()].value;
  }

  [[nodiscard]] int group_of(int mb) const {
    int group = 0;
    for (int end = program_.group_sizes[0]; mb >= end;
         end += program_.group_sizes[static_cast<std::size_t>(group)])
      ++group;
    return group;
  }

  /// Sender and receiver of a tag. Throws Wrong for one that no boundary has.
  [[nodiscard]] std::pair<int, int> ends(const Tag& t) const {
    if (t.payload == Payload::loss) {
      require(t.from.value == stages() - 1 && t.to.value == 0,
              "a loss goes from the last stage to the first");
      const auto& replicas = program_.placement.ranks.back();
      require(t.index >= 0 && t.index < static_cast<int>(replicas.size()), "no such replica");
      return {replicas[static_cast<std::size_t>(t.index)].value, program_.placement.ranks[0][0].value};
    }
    require(t.index == 0, "a boundary has one tensor");
    return {owner(t.from.value, t.number), owner(t.to.value, t.number)};
  }

  /// Whether a replica of so many has a micro-batch of the group.
  [[nodiscard]] bool takes_part(std::size_t replica, std::size_t replicas, int group) const {
    for (int mb = 0; mb < total_; ++mb) {
      if (static_cast<std::size_t>(mb) % replicas == replica && group_of(mb) == group) return true;
    }
    return false;
  }

 private:
  const LoweredProgram& program_;
  int total_ = 0;
};

}  // namespace stagecraft::test
