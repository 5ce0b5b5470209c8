#pragma once

// What happened when: the one event schema of simulator and engine, so that predicted and measured runs are
// compared and drawn by the same code.

#include "schedules/program/action.h"

#include <cstdint>
#include <string>
#include <vector>

namespace stagecraft {

/// One action on one rank. For a wait the time is the time spent waiting. For a transfer priced or observed
/// on the link itself `lane` is `send` (on the sender's row). A reduce or tie of that lane is the sum under way,
/// beside the backward that it overlaps with; the wait at its end is the rank's own.
struct Event {
  enum class Lane : std::uint8_t { compute, send, receive };
  Rank rank;
  Lane lane = Lane::compute;
  Action action;
  Seconds begin;  ///< since the segment's (or the run's) start
  Seconds end;
  std::int64_t step = 0;  ///< optimizer step of the run this belongs to, from 0
  Bytes bytes{};          ///< of a measured sum under way; else 0
};

/// What an event counts as, in colours, sums and filters.
enum class EventKind : std::uint8_t {
  forward,
  recompute,
  backward,  ///< both halves together
  backward_input,
  backward_weight,
  step,
  collective,  ///< reduce, tie and agree_norm, waiting for the other members included
  other,       ///< loading, reporting, buffer bookkeeping
  wait,        ///< for a transfer, on the compute lane
  transfer,    ///< on a link: a message, or a sum under way
};

template <>
inline constexpr std::array enum_names<EventKind>{
    "forward", "recompute",  "backward", "backward_input", "backward_weight",
    "step",    "collective", "other",    "wait",           "transfer"};

[[nodiscard]] EventKind event_kind(const Event& event);
/// Short, for boxes and rows: "F3", "1F3" on a rank that holds several stages (`with_stage`), "step 0",
/// "wait: gradient 3 from stage 1", "activation 3 to stage 1".
[[nodiscard]] std::string event_name(const Event& event, bool with_stage = false);

struct Timeline {
  std::string title;
  std::vector<std::string> rank_names;  ///< "rank 0: stage 0"
  std::vector<Event> events;            ///< by rank, then begin
};

/// Per rank that occurs in the events: whether it computes for several stages, so that names need the stage.
[[nodiscard]] std::vector<bool> holds_several_stages(const Timeline& timeline);

}  // namespace stagecraft
