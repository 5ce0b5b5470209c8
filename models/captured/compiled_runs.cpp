#include "stagecraft/models/captured/compiled_runs.h"

#include "stagecraft/base/files.h"
#include "stagecraft/base/json.h"
#include "stagecraft/base/sha256.h"
#include "stagecraft/models/captured/graph_file.h"
#include "stagecraft/models/captured/graph_values.h"
#include "stagecraft/models/layers/functional.h"

#include <ATen/Version.h>
#include <ATen/ops/empty_strided.h>
#include <fmt/format.h>
#include <torch/csrc/inductor/aoti_torch/tensor_converter.h>
#include <torch/headeronly/version.h>

#include <algorithm>
#include <charconv>
#include <dlfcn.h>
#include <mutex>
#include <optional>
#include <set>
#include <utility>

namespace stagecraft::captured {

// What the index holds, by its keys.

struct IndexRun {
  Part part = Part::forward;
  std::vector<std::int64_t> steps;
  std::vector<std::string> inputs, outputs;
  std::vector<std::vector<std::int64_t>> strides;
  std::string file;
};
template <class V>
void describe(V& v, IndexRun& r) {
  v.required("part", r.part, "of the graph");
  v.required("steps", r.steps, "that the code replaces, by their places in the part", json::non_empty());
  v.required("inputs", r.inputs, "values that the code reads", json::non_empty());
  v.required("strides", r.strides, "of each input");
  v.required("outputs", r.outputs, "values that it makes", json::non_empty());
  v.required("file", r.file, "one of `files`");
}

struct IndexGraph {
  std::string graph;
  std::int64_t samples = 0;
  std::vector<IndexRun> runs;
};
template <class V>
void describe(V& v, IndexGraph& g) {
  v.required("graph", g.graph, "file in graphs/, without .json");
  v.required("samples", g.samples, "of the micro-batch", json::at_least(1));
  v.required("runs", g.runs, "in the order of their steps; none: nothing of the graph gains by code");
}

struct Index {
  std::int64_t format = 0;
  std::string torch, device, capability;
  std::int64_t threads = 1;
  double difference = 0;
  std::map<std::string, std::string> files;
  std::vector<IndexGraph> graphs;
};
template <class V>
void describe(V& v, Index& i) {
  v.required("format", i.format, "of the index", json::between(1, 1));
  v.required("torch", i.torch, "version that compiled it");
  v.required("device", i.device, "cpu");
  v.required("capability", i.capability, "of the processor, as LibTorch names it");
  v.required("threads", i.threads, "per rank", json::between(1, 1024));
  v.required("difference", i.difference,
             "largest of a result from that of its steps, of the largest number of the result",
             json::at_least(0));
  v.required("files", i.files, "SHA-256 of FILE.so, by FILE");
  v.required("graphs", i.graphs, "that were compiled");
}

// Libraries.

struct CompiledCode::Library {
  using Create = std::int32_t (*)(void**, std::size_t, const char*, const char*);
  using Delete = std::int32_t (*)(void*);
  using Run = std::int32_t (*)(void*, AtenTensorHandle*, std::size_t, AtenTensorHandle*, std::size_t, void*,
                               void*);

  std::string path;
  std::size_t outputs = 0;
  Create create = nullptr;
  Delete destroy = nullptr;
  Run run = nullptr;
  std::mutex mutex;
  std::vector<void*> idle;  ///< instances that no call has

  template <class Function>
  void find(void* handle, const char* name, Function& function) const {
    function = reinterpret_cast<Function>(dlsym(handle, name));  // NOLINT(*-reinterpret-cast)
    if (function == nullptr) throw InputError({path, ""}, fmt::format("has no function {}", name));
  }

  void* take() {
    {
      const std::scoped_lock lock(mutex);
      if (!idle.empty()) {
        void* instance = idle.back();
        idle.pop_back();
        return instance;
      }
    }
    void* made = nullptr;
    if (create(&made, 1, "cpu", nullptr) != 0) throw InternalError(path + ": its code does not start");
    return made;
  }
  void give_back(void* instance) {
    const std::scoped_lock lock(mutex);
    idle.push_back(instance);
  }
};

CompiledCode::CompiledCode(const std::string& path, std::size_t outputs)
    : library_(std::make_unique<Library>()) {
  library_->path = path;
  library_->outputs = outputs;
  // It names no library of LibTorch, for libtorch.so would bring CUDA's: what it calls is in the one that
  // this program is linked with. It stays loaded, as LibTorch's own do.
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* reason = dlerror();  // NOLINT(concurrency-mt-unsafe): of this thread
    throw InputError({path, ""}, fmt::format("cannot be loaded: {}", reason == nullptr ? "" : reason));
  }
  library_->find(handle, "AOTInductorModelContainerCreateWithDevice", library_->create);
  library_->find(handle, "AOTInductorModelContainerDelete", library_->destroy);
  library_->find(handle, "AOTInductorModelContainerRunSingleThreaded", library_->run);
}

CompiledCode::~CompiledCode() {
  for (void* instance : library_->idle) (void)library_->destroy(instance);
}

std::vector<at::Tensor> CompiledCode::run(std::vector<at::Tensor> inputs) const {
  std::vector<AtenTensorHandle> given = torch::aot_inductor::unsafe_alloc_new_handles_from_tensors(
      inputs);  // the code frees each behind its last use
  inputs.clear();
  std::vector<AtenTensorHandle> made(library_->outputs);
  void* instance = library_->take();
  const std::int32_t failed =
      library_->run(instance, given.data(), given.size(), made.data(), made.size(), nullptr, nullptr);
  if (failed != 0) throw InternalError(library_->path + ": its code failed; the reason is on stderr");
  library_->give_back(instance);
  return torch::aot_inductor::alloc_tensors_by_stealing_from_handles(made.data(), made.size());
}

std::vector<at::Tensor> CompiledRun::run(std::vector<at::Tensor> given) const {
  for (std::size_t i = 0; i < given.size(); ++i) {
    const Input& input = inputs[i];
    at::Tensor& tensor = given[i];
    if (tensor.scalar_type() != input.dtype || tensor.sizes() != input.sizes || !tensor.device().is_cpu()) {
      throw InternalError(fmt::format("{}: input {} is {}{}, the code was made for {}{}", where, i,
                                      dtype_name(tensor.scalar_type()),
                                      functional::shape_text(tensor.sizes()), dtype_name(input.dtype),
                                      functional::shape_text(input.sizes)));
    }
    if (tensor.strides() != input.strides) {
      at::Tensor copy = at::empty_strided(input.sizes, input.strides, tensor.options());
      copy.copy_(tensor);
      tensor = std::move(copy);
    }
  }
  return code->run(std::move(given));
}

namespace {

constexpr std::uint64_t kMostIndexBytes = std::uint64_t{64} << 20U;
constexpr std::uint64_t kMostLibraryBytes = std::uint64_t{256} << 20U;
constexpr std::size_t kMostRuns = 100'000;

using Graphs = std::map<std::string, std::shared_ptr<const Graph>>;

Steps& steps_of(Graph& graph, Part part) {
  switch (part) {
    case Part::forward:
      return graph.forward;
    case Part::backward_input:
      return graph.backward_input;
    case Part::backward_weight:
      return graph.backward_weight;
    default:
      return graph.evaluate;
  }
}

/// What the engine and later parts read of a part.
std::set<ValueId> read_behind(const Graph& graph, Part part) {
  std::set<ValueId> read;
  const auto add = [&](const std::vector<ValueId>& ids) { read.insert(ids.begin(), ids.end()); };
  switch (part) {
    case Part::forward:
      add(graph.forward_outputs);
      add(graph.new_buffers);
      add(graph.keep_input);
      add(graph.keep_weight);
      break;
    case Part::backward_input:
      add(graph.input_gradients);
      add(graph.hand_on);
      break;
    case Part::backward_weight:
      add(graph.gradients);
      break;
    default:
      add(graph.evaluate_outputs);
  }
  return read;
}

std::set<ValueId> made_by(const Step& step) { return {step.results.begin(), step.results.end()}; }

std::set<ValueId> read_by(const Step& step) {
  std::set<ValueId> read;
  for (const Argument& argument : step.arguments) {
    read.insert(argument.values.begin(), argument.values.end());
  }
  read.erase(kNoValue);
  return read;
}

/// Replaces steps of a graph by compiled ones.
class RunPlacer {
 public:
  RunPlacer(Graph& graph, std::int64_t b, std::string file) : graph_(graph), b_(b), file_(std::move(file)) {}

  void place(const IndexRun& run, std::shared_ptr<const CompiledCode> code, const std::string& pointer) {
    const std::vector<Value>& values = run.part == Part::evaluate ? graph_.evaluate_values : graph_.values;
    auto compiled = std::make_shared<CompiledRun>();
    compiled->where = fmt::format("graph {}, {} of {}.so", graph_.hash, enum_name(run.part), run.file);
    compiled->code = std::move(code);
    Step step;
    step.name = "compiled " + run.file;
    step.own = Step::Own::compiled;
    if (run.strides.size() != run.inputs.size()) {
      throw InputError(at(pointer + "/strides"), fmt::format("expected those of {} inputs, found {}",
                                                             run.inputs.size(), run.strides.size()));
    }
    for (std::size_t i = 0; i < run.inputs.size(); ++i) {
      const ValueId id = id_of(run.inputs[i], values.size(), fmt::format("{}/inputs/{}", pointer, i));
      const ValueType& type = values[static_cast<std::size_t>(id)].type;
      if (run.strides[i].size() != type.sizes.size() ||
          std::any_of(run.strides[i].begin(), run.strides[i].end(), [](auto s) { return s < 0; })) {
        throw InputError(at(fmt::format("{}/strides/{}", pointer, i)),
                         fmt::format("does not fit \"{}\", which is {}", run.inputs[i], type.text()));
      }
      compiled->inputs.push_back({type.dtype, type.at(b_), run.strides[i]});
      step.arguments.push_back({Argument::Kind::value, {}, {id}, {}});
    }
    for (std::size_t i = 0; i < run.outputs.size(); ++i) {
      step.results.push_back(id_of(run.outputs[i], values.size(), fmt::format("{}/outputs/{}", pointer, i)));
    }
    step.compiled = std::move(compiled);
    replace(run, std::move(step), pointer);
  }

  /// Once all runs of a graph are in place.
  void check(const std::string& pointer) const {
    for (const auto& [part, before] : before_) {
      const Steps& steps = steps_of(graph_, part);
      std::set<ValueId> made, all;
      for (const Step& step : before) all.merge(made_by(step));
      const auto readable = [&](ValueId id) {
        return id == kNoValue || !all.contains(id) || made.contains(id);
      };
      for (const Step& step : steps) {
        for (const ValueId id : read_by(step)) {
          if (!readable(id)) refuse(pointer, part, id);
        }
        made.merge(made_by(step));
      }
      for (const ValueId id : read_behind(graph_, part)) {
        if (!readable(id)) refuse(pointer, part, id);
      }
    }
  }

 private:
  [[nodiscard]] InputPlace at(const std::string& pointer) const { return {file_, pointer}; }

  [[noreturn]] void refuse(const std::string& pointer, Part part, ValueId id) const {
    throw InputError(at(pointer), fmt::format("{} reads %{} where no step and no run has made it",
                                              enum_name(part), id - graph_.result(0)));
  }

  ValueId id_of(const std::string& name, std::size_t count, const std::string& pointer) const {
    const std::optional<ValueId> id = value_named(graph_, name, count);
    if (!id) throw InputError(at(pointer), fmt::format("there is no value {}", json::brief(name)));
    return *id;
  }

  /// The code stands where the last of its steps was. Steps between them that read what it makes, views, move
  /// behind it.
  void replace(const IndexRun& run, Step made, const std::string& pointer) {
    Steps& steps = steps_of(graph_, run.part);
    const auto [known, fresh] = before_.try_emplace(run.part, steps);
    const Steps& before = known->second;
    if (fresh) steps.clear(), next_[run.part] = 0;
    std::size_t& next = next_[run.part];
    std::set<std::size_t> replaced;
    for (std::size_t i = 0; i < run.steps.size(); ++i) {
      const std::int64_t at_step = run.steps[i];
      const bool ascends = i == 0 ? at_step >= static_cast<std::int64_t>(next) : at_step > run.steps[i - 1];
      if (!ascends || at_step >= static_cast<std::int64_t>(before.size())) {
        throw InputError(
            at(fmt::format("{}/steps/{}", pointer, i)),
            fmt::format("found {}: expected places of {} steps, ascending, none of an earlier run", at_step,
                        before.size()));
      }
      replaced.insert(static_cast<std::size_t>(at_step));
    }
    std::set<ValueId> of_run, read;
    for (const std::size_t i : replaced) {
      of_run.merge(made_by(before[i]));
      if (before[i].own != Step::Own::none) {
        throw InputError(at(pointer + "/steps"),
                         fmt::format("replace {}, which stays a step", before[i].name));
      }
    }
    for (const Step& step : before) read.merge(read_by(step));
    std::set<ValueId> results;
    for (std::size_t i = 0; i < made.results.size(); ++i) {
      if (of_run.contains(made.results[i]) && results.insert(made.results[i]).second) continue;
      throw InputError(at(fmt::format("{}/outputs/{}", pointer, i)),
                       fmt::format("\"{}\" is made by none of the steps, or named twice", run.outputs[i]));
    }
    for (std::size_t i = 0; i < made.arguments.size(); ++i) {
      const ValueId id = made.arguments[i].values[0];
      if (read.contains(id) && !of_run.contains(id)) continue;
      throw InputError(at(fmt::format("{}/inputs/{}", pointer, i)),
                       fmt::format("\"{}\" is read by no step, or made by one of these", run.inputs[i]));
    }
    Steps behind;
    std::set<ValueId> later = of_run;
    for (; next <= *replaced.rbegin(); ++next) {
      if (replaced.contains(next)) continue;
      const std::set<ValueId> its = read_by(before[next]);
      const bool moves = std::any_of(its.begin(), its.end(), [&](ValueId id) { return later.contains(id); });
      if (moves) later.merge(made_by(before[next]));
      (moves ? behind : steps).push_back(before[next]);
    }
    steps.push_back(std::move(made));
    steps.insert(steps.end(), behind.begin(), behind.end());
  }

 public:
  /// The steps behind the last run of each part.
  void finish() {
    for (const auto& [part, before] : before_) {
      Steps& steps = steps_of(graph_, part);
      steps.insert(steps.end(), before.begin() + static_cast<std::ptrdiff_t>(next_.at(part)), before.end());
    }
  }

 private:
  Graph& graph_;
  std::int64_t b_;
  std::string file_;
  std::map<Part, Steps> before_;  ///< of parts that have runs
  std::map<Part, std::size_t> next_;
};

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
  found->threads = static_cast<int>(index.threads);
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
    placer.finish();
    placer.check(pointer);
    if (!found->graphs[its.graph].emplace(its.samples, std::move(compiled)).second) {
      throw InputError(at(pointer), "the graph is there twice for this size");
    }
    if (std::find(found->sizes.begin(), found->sizes.end(), its.samples) == found->sizes.end()) {
      found->sizes.push_back(its.samples);
    }
  }
  return found;
}

}  // namespace stagecraft::captured
