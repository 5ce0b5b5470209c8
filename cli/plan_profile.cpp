#include "cli/plan_profile.h"

#include "cli/output.h"
#include "partitioner/graph/chain.h"
#include "partitioner/graph/graph_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <vector>

namespace stagecraft::cli {

bool is_graph(const std::string& path) { return path.ends_with(".txt"); }

std::int64_t size_to_plan(const Profile& profile, const std::string& path,
                          std::optional<std::int64_t> asked) {
  if (asked) return *asked;
  if (profile.measurements.size() == 1) return profile.measurements.front().micro_batch;
  std::vector<std::int64_t> sizes;
  for (const Measurement& measurement : profile.measurements) sizes.push_back(measurement.micro_batch);
  throw InputError(
      fmt::format("{} has measurements of several micro-batch sizes: choose --micro-batch-size {}", path,
                  fmt::join(sizes, " or ")));
}

Profile read_chain(const std::string& path, std::optional<std::int64_t> micro_batch_size) {
  if (!is_graph(path)) return read_profile(path);
  Profile profile = chain_profile(read_graph(path), micro_batch_size.value_or(1));
  if (!micro_batch_size) {
    note(
        fmt::format("{} does not say how many samples its mini-batch has; the micro-batches planned are such "
                    "mini-batches, counted as 1 sample (say otherwise with --micro-batch-size)",
                    path));
  }
  profile.model = std::filesystem::path(path).filename().string();
  return profile;
}

std::string other_device(const Profile& profile, bool on_gpus, const std::string& gpu) {
  if (profile.estimated_from || profile.device.empty()) return "";
  const bool of_gpu = profile.device != "cpu";
  if (of_gpu != on_gpus) {
    return fmt::format(
        "the profile is of a {0} (\"device\": \"{1}\"), and the run is on {2}: times and memory are the "
        "{0}'s. "
        "`stagecraft profile` measures on the run's device",
        of_gpu ? "GPU" : "CPU", profile.device, on_gpus ? "GPUs" : "CPUs");
  }
  // PyTorch's word says nothing of which.
  if (!on_gpus || gpu.empty() || profile.device == gpu || profile.device.starts_with("cuda")) return "";
  return fmt::format("the profile is of {}, and this machine's GPUs are {}: times are those of the former",
                     profile.device, gpu);
}

LayerGraph read_layer_graph(const std::string& path, std::optional<std::int64_t> micro_batch_size) {
  if (is_graph(path)) return read_graph(path);
  const Profile profile = read_profile(path);
  return layer_graph(profile.at(size_to_plan(profile, path, micro_batch_size)));
}

}  // namespace stagecraft::cli
