#include "models/captured/compiled/compiled_runs.h"

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "base/sha256.h"
#include "models/captured/compiled/compiled_code.h"
#include "models/captured/compiled/compiled_index.h"
#include "models/captured/compiled/run_placer.h"
#include "models/captured/format/graph_file.h"

#include <ATen/Version.h>
#include <fmt/format.h>
#include <torch/headeronly/version.h>

#include <algorithm>
#include <utility>

namespace stagecraft::captured {
namespace {

constexpr std::uint64_t kMostIndexBytes = std::uint64_t{64} << 20U;
constexpr std::uint64_t kMostLibraryBytes = std::uint64_t{256} << 20U;
constexpr std::size_t kMostRuns = 100'000;

using Graphs = std::map<std::string, std::shared_ptr<const Graph>>;

/// Why this program cannot run it; empty: it can.
std::string unfit(const Index& index) {
  if (index.device != "cpu") return fmt::format("it is for {}", index.device);
  if (index.torch != TORCH_VERSION) {
    return fmt::format("it was made with torch {}, this is LibTorch {}", index.torch, TORCH_VERSION);
  }
  if (const std::string here = at::get_cpu_capability(); index.capability != here) {
    return fmt::format("it was made for processors with {}, LibTorch uses {} here", index.capability, here);
  }
  return "";
}

}  // namespace

std::shared_ptr<const CompiledFolder> read_compiled(const std::string& folder, const Graphs& graphs) {
  auto found = std::make_shared<CompiledFolder>();
  found->file = folder + "/compiled/index.json";
  if (!is_there(found->file)) {
    found->why_not = "the folder has none: stagecraft-capture --compile makes it";
    return found;
  }
  const InputPlace whole{found->file, ""};
  const auto index =
      json::read<Index>(json::parse_text(read_file(found->file, kMostIndexBytes), found->file), whole);
  found->why_not = unfit(index);
  if (!found->why_not.empty()) return found;
  found->made_for.threads = static_cast<int>(index.threads);
  const auto at = [&](const std::string& pointer) { return InputPlace{found->file, pointer}; };
  for (const auto& [name, hash] : index.files) {
    if (is_hex(name, kGraphHashDigits) && is_hex(hash, 64)) continue;  // it becomes part of a path
    throw InputError(at("/files/" + name), fmt::format("expected {} hex digits in lower case and the 64 of a "
                                                       "SHA-256",
                                                       kGraphHashDigits));
  }
  std::map<std::string, std::pair<std::shared_ptr<const CompiledCode>, std::size_t>> loaded;
  const auto code_of = [&](const IndexRun& run, const std::string& pointer) {
    const auto known = index.files.find(run.file);
    if (known == index.files.end()) {
      throw InputError(at(pointer + "/file"), fmt::format("{} is not in /files", json::brief(run.file)));
    }
    auto& [code, outputs] = loaded[run.file];
    if (code == nullptr) {
      const std::string path = folder + "/compiled/" + run.file + ".so";
      if (const std::string actual = sha256(read_file(path, kMostLibraryBytes)); actual != known->second) {
        throw InputError({path, ""}, fmt::format("its SHA-256 is {}, {} says {}: the file was changed",
                                                 actual, found->file, known->second));
      }
      code = std::make_shared<const CompiledCode>(path, run.outputs.size());
      outputs = run.outputs.size();
    }
    if (outputs != run.outputs.size()) {
      throw InputError(at(pointer + "/outputs"),
                       fmt::format("another run of {}.so has {}", run.file, outputs));
    }
    return code;
  };
  std::size_t runs = 0;
  for (std::size_t i = 0; i < index.graphs.size(); ++i) {
    const IndexGraph& its = index.graphs[i];
    const std::string pointer = fmt::format("/graphs/{}", i);
    const auto graph = graphs.find(its.graph);
    if (graph == graphs.end()) {
      throw InputError(at(pointer + "/graph"),
                       fmt::format("no layer has a graph {}", json::brief(its.graph)));
    }
    runs += its.runs.size();
    if (runs > kMostRuns) throw InputError(at(pointer), fmt::format("more than {} runs", kMostRuns));
    auto compiled = std::make_shared<Graph>(*graph->second);
    RunPlacer placer(*compiled, its.samples, found->file);
    for (std::size_t k = 0; k < its.runs.size(); ++k) {
      const std::string at_run = fmt::format("{}/runs/{}", pointer, k);
      placer.place(its.runs[k], code_of(its.runs[k], at_run), at_run);
    }
    placer.finish(pointer);
    if (!found->graphs[its.graph].emplace(its.samples, std::move(compiled)).second) {
      throw InputError(at(pointer), "the graph is there twice for this size");
    }
    std::vector<std::int64_t>& sizes = found->made_for.micro_batches;
    if (std::ranges::find(sizes, its.samples) == sizes.end()) sizes.push_back(its.samples);
  }
  return found;
}

std::optional<CompiledFor> runs_for(const CompiledFolder& compiled) {
  const bool code =
      std::ranges::any_of(compiled.graphs, [](const auto& graph) { return !graph.second.empty(); });
  if (!compiled.why_not.empty() || !code) return std::nullopt;
  return compiled.made_for;
}

std::string note_on(const CompiledFolder& compiled) {
  if (!compiled.why_not.empty()) return "Compiled: nothing, all is interpreted: " + compiled.why_not;
  return fmt::format("Compiled: {}; others are interpreted", compiled.made_for.text());
}

}  // namespace stagecraft::captured
