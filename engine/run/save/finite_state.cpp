#include "engine/run/save/finite_state.h"

#include "models/data/sample_order.h"
#include "schedules/program/segments.h"

#include <ATen/ops/isfinite.h>
#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <vector>

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

/// The first number of the data that is not finite among the samples of `step`, as a sentence; "": there is none.
/// Fields may have infinite ones, as masks do.
std::string suspect_in_data(const RunSetup& setup, std::int64_t step) {
  const Dataset& data = *setup.inputs().data;
  const RunConfig& config = setup.config();
  const SampleOrder order(data, Split::train,
                          {.seed = static_cast<std::uint64_t>(config.seed),
                           .shuffle = config.data.shuffle,
                           .batch = config.train_batch_size});
  std::vector<std::string> sources{"inputs"};
  if (data.sample().field("targets")) sources.emplace_back("targets");
  for (const BatchField& field : setup.inputs().model.fields) {
    if (!field.from.empty()) sources.push_back(field.from);
  }
  for (const MicroBatchRange& range : step_micro_batches(setup.shape(), step)) {
    for (const std::int64_t index : order.samples(range)) {
      for (const std::string& source : sources) {
        const at::Tensor its = read_named(data, Split::train, source, {index});
        if (!c10::isFloatingType(its.scalar_type())) continue;
        const bool field = source != "inputs" && source != "targets";
        const bool found = (field ? its.isnan() : its.isfinite().logical_not()).any().item<bool>();
        if (!found) continue;
        const SampleOrigin origin = data.origin(Split::train, source, index);
        return fmt::format("Sample {} of {} has a number in its {} that is {}, which may be why. ",
                           origin.sample, origin.path.empty() ? data.summary() : origin.path, source,
                           field || its.isnan().any().item<bool>() ? "nan" : "inf");
      }
    }
  }
  return "";
}

}  // namespace

void require_finite_state(const Worker& worker, Transport& transport, std::int64_t steps) {
  const std::string found = first_not_finite(worker, transport);
  if (found.empty()) return;
  throw NotFiniteError(
      steps - 1,
      fmt::format("after it {} is not finite. The run stops here, and this state is not saved", found),
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
  std::string text;
  try {
    text = suspect_in_data(setup, error.step());
  } catch (const std::exception& unread) {
    text = fmt::format("{}. ", unread.what());
  }
  if (checkpoint.empty()) {
    return text +
           fmt::format("There is no checkpoint yet (checkpoint.every_steps): begin again with {}", kGentler);
  }
  text += fmt::format("{} has the last good state. ", checkpoint);
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
