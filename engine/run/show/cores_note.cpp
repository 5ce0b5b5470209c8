#include "engine/run/show/cores_note.h"

#include "base/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>

namespace stagecraft {

std::string few_cores_note(const std::vector<transport::CoreCounts>& ranks) {
  const auto few =
      std::ranges::count_if(ranks, [](const auto& one) { return one.usable < kCoresPerGpuRank; });
  if (few == 0) return "";
  const auto worst =
      std::ranges::min_element(ranks, {}, [](const transport::CoreCounts& one) { return one.usable; });
  const bool bound = worst->usable < worst->machine;
  const std::string others =
      few > 1 ? fmt::format(" ({} ranks have fewer than {})", few, kCoresPerGpuRank) : std::string();
  return fmt::format(
      "rank {} may run on {}{}{}. Its own thread, its loader and NCCL's threads share them, and the "
      "GPU waits for them: {}",
      worst - ranks.begin(), plural(worst->usable, "core"),
      bound ? fmt::format(" of its machine's {}", worst->machine) : ", which are all that its machine has",
      others,
      bound ? fmt::format("start the ranks unbound (mpirun --bind-to none, srun --cpu-bind=none), or with {} "
                          "cores each",
                          kCoresPerGpuRank)
            : fmt::format("take a machine, or a quota, of {} cores per rank", kCoresPerGpuRank));
}

std::string cores_text(const transport::CoreCounts& cores) {
  return fmt::format("{} {}", cores.machine, cores.usable);
}

transport::CoreCounts cores_from_text(const std::string& text) {
  transport::CoreCounts cores;
  std::istringstream(text) >> cores.machine >> cores.usable;
  return cores;
}

}  // namespace stagecraft
