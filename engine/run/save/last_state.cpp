#include "engine/run/save/last_state.h"

#include "engine/core/overflow.h"
#include "engine/run/resolve/run_transport.h"
#include "engine/run/save/checkpoint.h"
#include "engine/run/save/finite_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

namespace stagecraft {

TransportOptions meeting_options(const RunConfig& config) {
  constexpr Seconds kPatience{60}, kSaving{600};
  TransportOptions its = transport_options(config);
  its.timeout = std::min(its.timeout, kPatience);
  its.start_up_timeout = its.timeout;
  its.save_timeout = std::min(its.save_timeout, kSaving);
  return its;
}

LastSave save_last_state(const RunSetup& setup, const RunPaths& paths, const Worker& worker,
                         Transport& meeting, const LastState& state, std::string& unfinished) {
  const auto old = [&](const std::string& why) -> LastSave {
    if (state.checkpoint.empty()) return {"", fmt::format("No state was saved{}", why)};
    return {state.checkpoint, fmt::format("The state of step {} is in {}{}: go on from it with --resume",
                                          state.saved, state.checkpoint, why)};
  };
  const auto ranks =
      meeting.all_gather({state.step ? static_cast<double>(*state.step) : -1.0,
                          state.validation_owed ? 1.0 : 0.0, static_cast<double>(state.saved)});
  const double step = ranks.front().front();
  const auto elsewhere = [&](const auto& its) { return its.front() != step; };
  if (step < 0 || std::any_of(ranks.begin(), ranks.end(), elsewhere)) {
    return old(setup.synchronous()
                   ? " (ranks were between two steps, or a GPU holds weights: no state is whole)"
                   : " (an asynchronous run can be saved only where its pipeline drains)");
  }
  // Some may have gone on from a validation, or a save, whose end another had not heard of yet.
  bool owed = false, saved_already = step == 0;
  for (const auto& its : ranks) {
    owed = owed || its[1] != 0;
    saved_already = saved_already || its[2] >= step;
  }
  if (saved_already) return old("");
  meeting.waits().enter(Phase::save);
  check_session(paths);
  try {
    require_finite_state(worker, meeting, *state.step);
  } catch (const NotFiniteError& error) {
    return old(fmt::format(" ({})", error.what()));
  }
  const Saved saved = save_checkpoint(
      setup, paths, worker, meeting,
      {.step = *state.step, .validation_owed = owed, .older = OlderCheckpoints::stay}, unfinished);
  if (saved.failure)
    return old(fmt::format(" (that of step {} cannot be written: {})", *state.step, saved.failure->what));
  return {saved.folder, fmt::format("The state of step {} was saved in {}: go on from it with --resume",
                                    *state.step, saved.folder)};
}

}  // namespace stagecraft
