#pragma once

// The sends of one rank that are under way, as lowering waits for them: of every boundary only so many at
// once.

#include "schedules/program.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace stagecraft {

class SendWindow {
 public:
  explicit SendWindow(int sends_in_flight) : most_(static_cast<std::size_t>(sends_in_flight)) {}

  /// Takes `tag` up; returns the send to wait for before it is started, if there is one.
  std::optional<Tag> start(const Tag& tag);
  /// Whether `tag` was under way; it no longer is.
  bool finish(const Tag& tag);
  /// What is still under way, oldest first, over all boundaries.
  [[nodiscard]] std::vector<Tag> drain();

 private:
  struct Sent {
    std::int64_t nth;  // of all that were taken up
    Tag tag;
  };
  struct Boundary {
    Payload payload;
    StageId from, to;
    std::int32_t index;
    std::vector<Sent> sent;  // oldest first; never more than a handful
  };
  Boundary& boundary(const Tag& tag);

  std::size_t most_;
  std::vector<Boundary> boundaries_;
  std::int64_t started_ = 0;
};

}  // namespace stagecraft
