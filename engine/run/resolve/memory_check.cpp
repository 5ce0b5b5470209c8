#include "engine/run/resolve/memory_check.h"

#include "base/table.h"
#include "engine/device/accelerators.h"
#include "engine/run/resolve/device_reserve.h"
#include "engine/run/resolve/devices.h"
#include "engine/run/resolve/launcher.h"
#include "engine/run/resolve/memory_remedies.h"
#include "engine/transport/cores.h"
#include "profiler/layer_classes.h"
#include "profiler/profile_estimate.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace stagecraft {
namespace {

/// "weights 4.0 GiB, gradients 4.0 GiB", the largest first, without what is nothing.
std::string parts_text(std::vector<std::pair<std::string, Bytes>> parts) {
  std::stable_sort(parts.begin(), parts.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  std::string text;
  for (const auto& [name, bytes] : parts) {
    if (bytes.value > 0) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, format_bytes(bytes));
  }
  return text;
}

/// "; the largest layer is "head" (linear), 1.0 GiB of weights"; of layers [first, last).
std::string largest_layer(const Model& model, const std::vector<std::pair<int, int>>& ranges) {
  int largest = -1;
  Bytes most;
  for (const auto& [first, last] : ranges) {
    for (int layer = first; layer < last; ++layer) {
      const Bytes bytes = parameter_bytes(model, layer);
      if (bytes <= most) continue;
      most = bytes;
      largest = layer;
    }
  }
  if (largest < 0) return "";
  const Layer& layer = *model.layers[static_cast<std::size_t>(largest)];
  return fmt::format("; the largest layer is \"{}\" ({}) with {} of weights", layer.name(),
                     layer.facts().type, format_bytes(most));
}

/// What training some layers takes at least.
struct LeastBytes {
  Bytes weights, copies, gradients, optimizer_state;
  LeastBytes& operator+=(const LeastBytes& other) {
    weights += other.weights;
    copies += other.copies;
    gradients += other.gradients;
    optimizer_state += other.optimizer_state;
    return *this;
  }
  [[nodiscard]] Bytes sum() const { return weights + copies + gradients + optimizer_state; }
  [[nodiscard]] std::string text() const {
    return parts_text(
        {{"weights", weights + copies}, {"gradients", gradients}, {"optimizer state", optimizer_state}});
  }
};

LeastBytes least_bytes(const TrainingInputs& inputs, int first, int last, bool with_state = true) {
  const Model& model = inputs.model;
  LeastBytes least;
  const Precision precision = model.precision;
  for (int layer = first; layer < last; ++layer) least.weights += parameter_bytes(model, layer);
  const auto narrow = static_cast<std::int64_t>(c10::elementSize(precision.compute));
  const auto wide = static_cast<std::int64_t>(c10::elementSize(precision.full));
  if (precision.mixed()) least.copies = Bytes{least.weights.value / wide * narrow};
  least.gradients = least.weights;
  for (int layer = first; with_state && layer < last; ++layer) {
    least.optimizer_state += inputs.optimizer->state_bytes(layer);
  }
  return least;
}

/// The processes that share one limit, by their positions, and the least that any of them saw left.
struct Shared {
  std::vector<std::size_t> processes;
  MemoryLimit limit;
};

std::vector<Shared> shared_limits(const std::vector<ProcessMemory>& processes) {
  std::map<std::string, Shared> shared;
  for (std::size_t p = 0; p < processes.size(); ++p) {
    for (const MemoryLimit& limit : processes[p].limits) {
      const bool own = limit.scope == "process";
      const auto [entry, fresh] =
          shared.try_emplace(own ? fmt::format("{} {}", p, limit.name)
                                 : fmt::format("{} {}", processes[p].machine, limit.scope));
      entry->second.processes.push_back(p);
      if (fresh || limit.available < entry->second.limit.available) entry->second.limit = limit;
    }
  }
  std::vector<Shared> all;
  for (auto& [key, one] : shared) all.push_back(std::move(one));
  return all;
}

std::string refusal_text(const RunSetup& setup, const std::vector<RankNeed>& needs,
                         const std::vector<Rank>& ranks, const MemoryLimit& limit, Bytes together) {
  std::string text;
  if (ranks.size() > 1) {
    text = fmt::format("{} ranks need {} together, but {}:", ranks.size(), format_bytes(together),
                       describe_limit(limit));
  }
  // The neediest first, and not thousands of them.
  constexpr std::size_t kMostRanks = 8;
  std::vector<Rank> sorted = ranks;
  std::stable_sort(sorted.begin(), sorted.end(),
                   [&](Rank a, Rank b) { return needs[a.index()].bytes > needs[b.index()].bytes; });
  for (std::size_t i = 0; i < std::min(sorted.size(), kMostRanks); ++i) {
    const RankNeed& need = needs[sorted[i].index()];
    if (ranks.size() > 1) text += "\n  ";
    text += fmt::format("{} needs {}", need.name, format_bytes(need.bytes));
    if (ranks.size() == 1) text += ", but " + describe_limit(limit);
    text += fmt::format("{}{}", ranks.size() == 1 ? "\n  " : ": ", need.made_of);
  }
  if (sorted.size() > kMostRanks) text += fmt::format("\n  and {} more", sorted.size() - kMostRanks);

  const auto fits = [&](const std::vector<Bytes>& peaks) {
    Bytes sum;
    for (const Rank rank : ranks) sum += peaks[rank.index()];
    return sum <= limit.available;
  };
  std::vector<std::string> remedies = memory_remedies(setup, fits);
  const Bytes most = needs[sorted.front().index()].bytes;
  if (ranks.size() > 1 && most <= limit.available) {
    // Ranks are put one after the other, so each machine is filled as long as the neediest would still fit.
    const std::int64_t a_machine = limit.available.value / most.value;
    const auto count = static_cast<std::int64_t>(ranks.size());
    remedies.push_back(fmt::format("{} machines like this one, with {} of these ranks on each",
                                   (count + a_machine - 1) / a_machine, a_machine));
  }
  if (most > limit.available && setup.plan().stages.size() < setup.inputs().model.layers.size()) {
    remedies.push_back("more ranks: stages of fewer layers, on more machines");
  }
  remedies.push_back(fmt::format("{} more memory", format_bytes(together - limit.available)));
  text += "\nWhat would fit, each alone:";
  for (const std::string& remedy : remedies) text += "\n  " + remedy;
  return text;
}

}  // namespace

ProcessMemory process_memory(std::vector<Rank> ranks) {
  ProcessMemory process{transport::boot_id(), std::move(ranks), {}};
  std::int64_t kept_free = 0;
#ifdef __GLIBC__
  ::malloc_trim(0);
  kept_free = static_cast<std::int64_t>(::mallinfo2().fordblks);
#endif
  process.limits = memory_limits();
  for (MemoryLimit& limit : process.limits) {
    // Addresses that malloc keeps count as used there, though they are free for the next tensor.
    if (limit.scope == "process") limit.available = std::min(limit.total, limit.available + Bytes{kept_free});
  }
  return process;
}

ProcessMemory process_memory(Rank rank, at::Device device) {
  const Accelerator gpu = accelerators().devices.at(static_cast<std::size_t>(device.index()));
  const DeviceMemory memory = device_memory(device.index());
  return {transport::boot_id(),
          {rank},
          {{.name = fmt::format("the memory of GPU {} ({})", static_cast<int>(device.index()), gpu.name),
            .scope = "GPU " + gpu.pci_address,
            .total = memory.total,
            .available = memory.available}}};
}

std::vector<MemoryLimit> tensor_limits(at::Device device) {
  return device.is_cpu() ? process_memory({}).limits : process_memory(Rank{0}, device).limits;
}

namespace {

/// What a run on GPUs may send by NCCL.
transport::NcclWiring possible_wiring(const RunSetup& setup) {
  const RunConfig& config = setup.config();
  const bool over_nccl =
      config.device != DeviceKind::cpu && setup.world() > 1 &&
      (config.comms.backend == Backend::nccl || config.comms.backend == Backend::automatic) &&
      detect_launch().launched();
  if (!over_nccl) return {};
  return setup.nccl_wiring();
}

/// What is written in the background is a copy, which the hosts' memory holds.
void add_snapshot(const RunSetup& setup, Bytes saved, RankNeed& need) {
  if (!setup.config().checkpoint.in_background || setup.config().device != DeviceKind::cpu) return;
  need.bytes += saved;
  need.made_of += "; and a copy to save (checkpoint.in_background) of " + format_bytes(saved);
}

/// On a GPU, what `need` takes beside its tensors.
void add_reserve(const RunSetup& setup, Rank rank, Bytes transient, const transport::NcclWiring& wiring,
                 RankNeed& need) {
  if (setup.config().device == DeviceKind::cpu) return;
  const DeviceReserve reserve = device_reserve(device_use(setup, rank, need.bytes, transient, wiring));
  need.bytes += reserve.sum();
  need.made_of += "; beside tensors " + parts_text({{"workspaces", reserve.workspaces},
                                                    {"communicators", reserve.communicators},
                                                    {"recordings", reserve.recordings},
                                                    {"the norm", reserve.norm},
                                                    {"unused parts of blocks", reserve.blocks}});
}

}  // namespace

std::vector<RankNeed> memory_needs(const RunSetup& setup) {
  const Model& model = setup.inputs().model;
  const transport::NcclWiring wiring = possible_wiring(setup);
  std::vector<RankNeed> needs;
  for (int r = 0; r < setup.world(); ++r) {
    const Rank rank{r};
    std::vector<std::pair<int, int>> ranges;
    LeastBytes least;
    for (const StageId stage : setup.placement().stages_of(rank)) {
      ranges.push_back(setup.layers_of_stages()[stage.index()]);
      least += least_bytes(setup.inputs(), ranges.back().first, ranges.back().second);
    }
    const std::string largest = largest_layer(model, ranges);
    if (setup.programs().memory_proofs().empty()) {
      needs.push_back({setup.rank_name(rank), least.sum(), "at least " + least.text() + largest});
      add_snapshot(setup, least.weights + least.optimizer_state, needs.back());
      add_reserve(setup, rank, {}, wiring, needs.back());
      continue;
    }
    const MemoryProof& proof = setup.programs().memory_proofs()[rank.index()];
    const std::string parts = parts_text({{"weights", proof.weights},
                                          {"older versions of them", proof.versions},
                                          {"gradients", proof.gradients},
                                          {"optimizer state", proof.optimizer_state},
                                          {"kept activations", proof.kept},
                                          {"slots and sends", proof.transfers},
                                          {fmt::format("operators ({})", proof.at), proof.transient}});
    needs.push_back({setup.rank_name(rank), proof.peak, parts + largest});
    add_snapshot(setup, proof.weights + proof.optimizer_state, needs.back());
    add_reserve(setup, rank, proof.transient, wiring, needs.back());
  }
  return needs;
}

void check_memory(const RunSetup& setup, const std::vector<ProcessMemory>& processes) {
  const std::vector<RankNeed> needs = memory_needs(setup);
  for (const Shared& shared : shared_limits(processes)) {
    std::vector<Rank> ranks;
    Bytes together;
    for (const std::size_t p : shared.processes) {
      for (const Rank rank : processes[p].ranks) {
        ranks.push_back(rank);
        together += needs[rank.index()].bytes;
      }
    }
    if (together <= shared.limit.available) continue;
    throw RefusedError(refusal_text(setup, needs, ranks, shared.limit, together));
  }
}

namespace {

LeastBytes least_of_profile(const RunConfig& config, const TrainingInputs& inputs) {
  const Model& model = inputs.model;
  const LayerClasses classes = layer_classes(model, config.profiler.representatives);
  LeastBytes least;
  for (int layer = 0; layer < static_cast<int>(model.layers.size()); ++layer) {
    if (!classes.left_out[static_cast<std::size_t>(layer)])
      least += least_bytes(inputs, layer, layer + 1, config.device == DeviceKind::cpu);
  }
  return least;
}

/// The largest layer's input and output, at the largest size measured.
Bytes least_activations(const RunConfig& config, const Model& model) {
  std::int64_t size = config.micro_batch_size;
  for (const std::int64_t other : config.profiler.micro_batch_sizes) size = std::max(size, other);
  const std::vector<BoundarySpec> all = boundaries(model, size);
  Bytes most;
  for (std::size_t i = 0; i + 1 < all.size(); ++i) {
    // An output may be a view of the input: of two of equal size one is counted.
    const Bytes in = std::min(kMostParameterBytes, Bytes{all[i].bytes()});
    const Bytes out = std::min(kMostParameterBytes, Bytes{all[i + 1].bytes()});
    most = std::max(most, in == out ? in : in + out);
  }
  return most;
}

}  // namespace

Bytes least_profile_bytes(const RunConfig& config, const TrainingInputs& inputs) {
  return least_of_profile(config, inputs).sum() + least_activations(config, inputs.model);
}

void check_profile_memory(const RunConfig& config, const std::string& file, const TrainingInputs& inputs,
                          int processes_here, const std::vector<MemoryLimit>& limits) {
  const Model& model = inputs.model;
  const LeastBytes least = least_of_profile(config, inputs);
  const Bytes one = least_profile_bytes(config, inputs);
  for (const MemoryLimit& limit : limits) {
    const int processes = limit.scope == "process" ? 1 : processes_here;
    if (one.value <= limit.available.value / processes) continue;
    throw RefusedError(
        fmt::format("{}: measuring the layers of {} needs at least {}{}, but {}\n  {}, activations "
                    "{}{}\nWhat would fit: smaller "
                    "layers or micro-batches; a machine with {} more memory; or a plan made from a profile "
                    "that was measured on one "
                    "(`stagecraft plan {} --profile profile.json -o plan.json`){}",
                    file, model.name, format_bytes(one),
                    processes == 1 ? "" : fmt::format(" on each of {} ranks here", processes),
                    describe_limit(limit), least.text(), format_bytes(one - least.sum()),
                    largest_layer(model, {{0, static_cast<int>(model.layers.size())}}),
                    format_bytes(Bytes{(one.value - limit.available.value / processes)} * processes), file,
                    !not_estimated(model).empty()
                        ? ""
                        : fmt::format("; or a profile that is estimated, not measured (`stagecraft profile "
                                      "{} --estimate --tflops N --memory-gbps N`)",
                                      file)));
  }
}

}  // namespace stagecraft
