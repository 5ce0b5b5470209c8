#include "stagecraft/engine/run/finite_state.h"

#include <fmt/format.h>

#include <algorithm>

namespace stagecraft {
namespace {

constexpr const char* kGentler = "a lower learning rate, a longer warm-up or gradient_clipping";

/// What the first rank with something not finite calls it; empty where all is finite.
std::string first_not_finite(const Worker& worker, Transport& transport) {
  const std::string mine = worker.not_finite();
  const std::vector<std::vector<double>> all = transport.all_gather({mine.empty() ? 0.0 : 1.0});
  if (std::all_of(all.begin(), all.end(), [](const auto& rank) { return rank.front() == 0; })) return "";
  const std::vector<std::string> words = transport.all_gather_text(mine);
  return *std::find_if(words.begin(), words.end(), [](const std::string& found) { return !found.empty(); });
}

}  // namespace

void require_finite_state(const Worker& worker, Transport& transport, std::int64_t steps) {
  const std::string found = first_not_finite(worker, transport);
  if (found.empty()) return;
  throw NotFiniteError(
      fmt::format("step {}: after it {} is not finite. The run stops here, and this state is not saved",
                  steps, found),
      /*skip_helps=*/false);
}

void require_finite_load(const Worker& worker, Transport& transport, const std::string& folder) {
  const std::string found = first_not_finite(worker, transport);
  if (found.empty()) return;
  throw InputError({folder, ""},
                   fmt::format("{} is not finite: nothing can be learned from there. Remove the "
                               "folder to go on from an older checkpoint, or name another one",
                               found));
}

std::string how_to_go_on(const NotFiniteError& error, const RunSetup& setup, const std::string& checkpoint) {
  if (checkpoint.empty()) {
    return fmt::format("There is no checkpoint yet (checkpoint.every_steps): begin again with {}", kGentler);
  }
  std::string text = fmt::format("{} has the last good state. ", checkpoint);
  if (error.skip_helps()) {
    const bool needs_norm = setup.synchronous() && !setup.config().gradient_norm;
    text +=
        fmt::format("Go on from it with --resume --set on_overflow=skip{}, which leaves such steps out; or ",
                    needs_norm ? " --set gradient_norm=true" : "");
  } else {
    text += "To go on from it, ";
  }
  return text + fmt::format(
                    "begin another run from its weights with {}: --set initial_checkpoint={} and "
                    "another run_dir",
                    kGentler, checkpoint);
}

}  // namespace stagecraft
