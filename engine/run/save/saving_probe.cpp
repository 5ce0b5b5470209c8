#include "engine/run/save/saving_probe.h"

#include "base/table.h"
#include "engine/run/save/checkpoint.h"
#include "engine/run/save/checkpoint_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <limits>

namespace stagecraft {
namespace {

std::string longest_file_name(const Model& model) {
  std::string longest;
  for (const LayerPtr& layer : model.layers) {
    std::string name = layer_file(layer->name());
    if (name.size() > longest.size()) longest = std::move(name);
  }
  return longest;
}

std::string folder_of_rank(const std::string& probe, int rank) {
  return fmt::format("{}/rank-{}", probe, rank);
}

void check_space(const RunSetup& setup, const std::string& folder) {
  std::uint64_t left = 0;
  if (storage().space(folder, left)) return;  // some file systems cannot tell
  const auto there = static_cast<std::int64_t>(complete_checkpoints(folder).size());
  const std::int64_t more = std::max<std::int64_t>(1, checkpoints_at_once(setup) - there);
  const std::uint64_t each = checkpoint_bytes(setup);
  if (each == 0 || left / each >= static_cast<std::uint64_t>(more)) return;
  const auto text = [](double bytes) {
    return format_bytes(Bytes{static_cast<std::int64_t>(std::min(bytes, 9e18))});
  };
  throw InputError(
      {folder, ""},
      fmt::format(
          "{} checkpoints of {} each are to come here ({} at once, {} there already), which is {}; {} are "
          "left on this disk. Make room, or use a smaller checkpoint.keep or another run_dir",
          more, text(static_cast<double>(each)), checkpoints_at_once(setup), there,
          text(static_cast<double>(each) * static_cast<double>(more)), text(static_cast<double>(left))));
}

}  // namespace

std::int64_t checkpoints_at_once(const RunSetup& setup) {
  const CheckpointConfig& config = setup.config().checkpoint;
  const std::int64_t made =
      1 + (config.every_steps > 0 ? setup.shape().steps / config.every_steps : 0) + (config.at_start ? 1 : 0);
  if (config.keep == 0 || config.keep == std::numeric_limits<std::int64_t>::max()) return made;
  return std::min(made, config.keep + 1);
}

Seconds try_saving(const RunSetup& setup, const RunPaths& paths, Transport& transport,
                   std::string& unfinished) {
  const auto began = std::chrono::steady_clock::now();
  const std::string folder = paths.checkpoints();
  const int me = transport.rank().value;
  if (me == 0) {
    check_space(setup, folder);
    unfinished = name_aside(folder + "/probe");
    make_folder(unfinished);
  }
  unfinished = transport.broadcast(unfinished);
  const std::string& probe = unfinished;
  if (!is_folder(probe)) {
    throw InputError(
        {probe, ""},
        fmt::format("rank {} does not see this folder, which rank 0 made just now: run_dir must be on a "
                    "disk that all machines of the run share",
                    me));
  }
  const std::string mine = folder_of_rank(probe, me);
  make_folder(mine);
  const std::string file = mine + "/" + longest_file_name(setup.inputs().model);
  const std::string contents = fmt::format("rank {} can write here\n", me);
  write_new_file(file, {contents});
  sync_folder(mine);
  if (read_file(file) != contents) throw InputError({file, ""}, "is not what was written to it a moment ago");
  transport.barrier();
  for (int other = 0; other < transport.world(); ++other) {
    if (is_folder(folder_of_rank(probe, other))) continue;
    throw InputError(
        {folder_of_rank(probe, other), ""},
        fmt::format("rank {} does not see what rank {} wrote: run_dir must be on a disk that all machines "
                    "of the run share",
                    me, other));
  }
  transport.barrier();
  if (me == 0) {
    if (const std::error_code error = remove_tree(probe)) {
      throw InputError({probe, ""}, "cannot be removed again: " + error.message());
    }
  }
  unfinished.clear();
  return Seconds{std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count()};
}

}  // namespace stagecraft
