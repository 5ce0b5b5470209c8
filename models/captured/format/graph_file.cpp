#include "models/captured/format/graph_file.h"

#include "base/files.h"
#include "base/json.h"
#include "base/sha256.h"
#include "models/captured/format/step_parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <utility>

namespace stagecraft::captured {

// What a graph file holds, by its keys. Steps have a form of their own.

struct ForwardPart {
  Json steps;
  std::vector<std::string> outputs;
  std::vector<std::optional<std::string>> buffers;
  std::vector<std::string> keep_input, keep_weight;
};
template <class V>
void describe(V& v, ForwardPart& p) {
  v.required("steps", p.steps, "in order");
  v.required("outputs", p.outputs, "values");
  v.required("buffers", p.buffers, "new values, null where a buffer stays");
  v.required("keep_input", p.keep_input, "for backward_input");
  v.required("keep_weight", p.keep_weight, "for backward_weight");
}

struct BackwardInputPart {
  Json steps;
  std::vector<std::optional<std::string>> outputs;
  std::vector<std::string> keep_weight;
};
template <class V>
void describe(V& v, BackwardInputPart& p) {
  v.required("steps", p.steps, "in order");
  v.required("outputs", p.outputs, "gradients of the inputs, null where one has none");
  v.required("keep_weight", p.keep_weight, "for backward_weight");
}

struct BackwardWeightPart {
  Json steps;
  std::vector<std::optional<std::string>> gradients;
};
template <class V>
void describe(V& v, BackwardWeightPart& p) {
  v.required("steps", p.steps, "in order");
  v.required("gradients", p.gradients, "of the parameters, null where there is none");
}

struct EvaluatePart {
  Json steps;
  std::vector<std::string> outputs;
};
template <class V>
void describe(V& v, EvaluatePart& p) {
  v.required("steps", p.steps, "in order");
  v.required("outputs", p.outputs, "values");
}

struct GraphFile {
  std::int64_t format = 0;
  std::vector<std::string> inputs, outputs, parameters, buffers, constants, fields;
  ForwardPart forward;
  BackwardInputPart backward_input;
  BackwardWeightPart backward_weight;
  EvaluatePart evaluate;
  std::int64_t multiply_adds = 0;
};
template <class V>
void describe(V& v, GraphFile& g) {
  v.format(g.format, 2, "graphs");
  v.required("parameters", g.parameters, "types");
  v.required("buffers", g.buffers, "types");
  v.required("constants", g.constants, "types");
  v.optional("fields", g.fields, "types of the fields of the batch that it reads besides its inputs");
  v.required("inputs", g.inputs, "types", json::non_empty());
  v.required("outputs", g.outputs, "types", json::non_empty());
  v.required("forward", g.forward, "steps of training");
  v.required("backward_input", g.backward_input, "gradients of the inputs");
  v.required("backward_weight", g.backward_weight, "gradients of the parameters");
  v.required("evaluate", g.evaluate, "forward in evaluation");
  v.required("multiply_adds", g.multiply_adds, "of one sample's forward", json::at_least(0));
}

namespace {

constexpr std::uint64_t kMostFileBytes = std::uint64_t{64} << 20U;

/// Reads the parts of one graph in their order, keeping account of which values there are.
class GraphReader {
 public:
  GraphReader(const std::string& file, std::string hash) : values_(graph_, file), steps_(values_) {
    graph_.hash = std::move(hash);
  }

  Graph read(const Json& json) {
    const auto file = json::read<GraphFile>(json, {values_.file(), ""});
    graph_.multiply_adds = file.multiply_adds;
    graph_.parameters = types(file.parameters, "parameters", false);
    graph_.buffers = types(file.buffers, "buffers", false);
    graph_.constants = types(file.constants, "constants", false);
    graph_.fields = types(file.fields, "fields", true);
    graph_.inputs = types(file.inputs, "inputs", true);
    graph_.outputs = types(file.outputs, "outputs", true);
    tells_b(graph_.inputs, "inputs", [](const ValueType&) { return true; });
    const bool numbers = std::all_of(graph_.outputs.begin(), graph_.outputs.end(),
                                     [](const ValueType& type) { return type.sizes.empty(); });  // a loss's
    if (!numbers) {
      tells_b(graph_.outputs, "outputs", [](const ValueType& t) { return c10::isFloatingType(t.dtype); });
    }
    forward(file.forward);
    backward_input(file.backward_input);
    backward_weight(file.backward_weight);
    evaluate(file.evaluate);
    return std::move(graph_);
  }

 private:
  [[nodiscard]] InputPlace at(const std::string& pointer) const { return values_.at(pointer); }
  [[noreturn]] void refuse(const std::string& pointer, const std::string& found,
                           const std::string& expected) const {
    throw InputError(at(pointer), fmt::format("expected {}, found {}", expected, json::brief(found)));
  }

  /// A part knows its micro-batch's size from one of these; a backward from a gradient.
  template <class Counts>
  void tells_b(const std::vector<ValueType>& types, const char* key, const Counts& counts) const {
    const auto tells = [&](const ValueType& type) { return type.depends_on_b() && counts(type); };
    if (std::any_of(types.begin(), types.end(), tells)) return;
    throw InputError(at(key), "expected a type whose sizes depend on b");
  }

  std::vector<ValueType> types(const std::vector<std::string>& texts, const char* key, bool of_b) const {
    if (texts.size() > kMostTensors) {
      throw InputError(at(key),
                       fmt::format("{} tensors; a layer has at most {}", texts.size(), kMostTensors));
    }
    std::vector<ValueType> all;
    for (std::size_t i = 0; i < texts.size(); ++i) {
      all.push_back(parse_value_type(texts[i], at(fmt::format("{}/{}", key, i))));
      if (!of_b && all.back().depends_on_b()) {
        refuse(fmt::format("{}/{}", key, i), texts[i], "a type whose sizes do not depend on b");
      }
      if (c10::isComplexType(all.back().dtype) && std::string_view(key) != "constants") {
        refuse(fmt::format("{}/{}", key, i), texts[i], "real numbers: complex ones stay within a layer");
      }
    }
    return all;
  }

  void forward(const ForwardPart& part) {
    values_.begin(Part::forward);
    graph_.forward = steps_.read(part.steps, "forward/steps");
    graph_.forward_outputs = outputs(part.outputs, "forward");
    graph_.new_buffers = named_or_null(part.buffers, graph_.buffers, "forward/buffers");
    graph_.keep_input = kept(part.keep_input, "forward/keep_input");
    graph_.keep_weight = kept(part.keep_weight, "forward/keep_weight");
    for (std::size_t i = 0; i < graph_.new_buffers.size(); ++i) {
      if (graph_.new_buffers[i] == kNoValue) continue;
      not_of_changing(graph_.new_buffers[i], fmt::format("forward/buffers/{}", i), /*of_any=*/true);
    }
    for (const ValueId id : graph_.forward_outputs) not_of_changing(id, "forward/outputs");
    for (const ValueId id : graph_.keep_input) not_of_changing(id, "forward/keep_input");
    for (const ValueId id : graph_.keep_weight) not_of_changing(id, "forward/keep_weight");
  }

  void backward_input(const BackwardInputPart& part) {
    values_.begin(Part::backward_input);
    for (std::size_t i = 0; i < graph_.outputs.size(); ++i) {
      if (c10::isFloatingType(graph_.outputs[i].dtype)) values_.let_read(graph_.gradient(i));
    }
    for (const ValueId id : graph_.keep_input) values_.let_read(id);
    graph_.backward_input = steps_.read(part.steps, "backward_input/steps");
    graph_.input_gradients = named_or_null(part.outputs, graph_.inputs, "backward_input/outputs");
    for (std::size_t i = 0; i < part.outputs.size(); ++i) {
      if (!part.outputs[i] || c10::isFloatingType(graph_.inputs[i].dtype)) continue;
      refuse(fmt::format("backward_input/outputs/{}", i), *part.outputs[i],
             "null: the input is no floating-point tensor");
    }
    graph_.hand_on = kept(part.keep_weight, "backward_input/keep_weight");
    for (const ValueId id : graph_.hand_on) {
      if (std::find(graph_.keep_weight.begin(), graph_.keep_weight.end(), id) != graph_.keep_weight.end()) {
        throw InputError(at("backward_input/keep_weight"),
                         "names a value that forward/keep_weight names too");
      }
    }
    note_buffers_read_back();
  }

  void backward_weight(const BackwardWeightPart& part) {
    values_.begin(Part::backward_weight);
    bool knows_b = false;
    const bool kept = !graph_.keep_weight.empty() || !graph_.hand_on.empty();
    for (const auto* names : {&graph_.keep_weight, &graph_.hand_on}) {
      for (const ValueId id : *names) {
        values_.let_read(id);
        knows_b = knows_b || values_[id].type.depends_on_b();
      }
    }
    graph_.backward_weight = steps_.read(part.steps, "backward_weight/steps");
    if (!knows_b && depend_on_b(graph_.backward_weight)) {
      throw InputError(
          at("backward_weight/steps"),
          "nothing is kept for them whose size depends on b; make these values in backward_input");
    }
    graph_.gradients = named_or_null(part.gradients, graph_.parameters, "backward_weight/gradients");
    const auto named = [](ValueId id) { return id != kNoValue; };
    if (!kept && (!graph_.backward_weight.empty() || std::ranges::any_of(graph_.gradients, named))) {
      throw InputError(at("backward_weight"), "nothing is kept for it; keep or hand on what it reads");
    }
    note_products();
  }

  [[nodiscard]] bool depend_on_b(const Steps& steps) const {
    const auto has_b = [](const AffineSize& size) { return size.depends_on_b(); };
    return std::any_of(steps.begin(), steps.end(), [&](const Step& step) {
      return std::any_of(step.results.begin(), step.results.end(),
                         [&](ValueId id) { return id != kNoValue && values_[id].type.depends_on_b(); }) ||
             std::any_of(step.arguments.begin(), step.arguments.end(), [&](const Argument& argument) {
               return std::any_of(argument.sizes.begin(), argument.sizes.end(), has_b);
             });
    });
  }

  void note_products() {
    graph_.products.resize(graph_.gradients.size());
    std::map<ValueId, int> uses;  // of a gradient, by steps and as a gradient
    for (const ValueId id : graph_.gradients) ++uses[id];
    for (const Step& step : graph_.backward_weight) {
      for (const Argument& argument : step.arguments) {
        for (const ValueId id : argument.values) ++uses[id];
      }
    }
    for (const Step& step : graph_.backward_weight) {
      if (step.name != "aten::mm") continue;
      const auto made = std::find(graph_.gradients.begin(), graph_.gradients.end(), step.results[0]);
      if (made == graph_.gradients.end() || uses[*made] != 1) continue;
      if (step.arguments[0].values.empty() || step.arguments[1].values.empty()) continue;
      const Product product{step.arguments[0].values[0], step.arguments[1].values[0]};
      const std::vector<AffineSize>&left = values_[product.left].type.sizes,
            &right = values_[product.right].type.sizes;
      if (left.size() != 2 || right.size() != 2 || left[1] != right[0]) continue;
      graph_.products[static_cast<std::size_t>(made - graph_.gradients.begin())] = product;
    }
  }

  void evaluate(const EvaluatePart& part) {
    values_.begin(Part::evaluate);
    graph_.evaluate = steps_.read(part.steps, "evaluate/steps");
    graph_.evaluate_outputs = outputs(part.outputs, "evaluate");
  }

  std::vector<ValueId> outputs(const std::vector<std::string>& names, const std::string& part) const {
    return named_or_null({names.begin(), names.end()}, graph_.outputs, part + "/outputs");
  }

  /// One name or null for each of `types`, of that type.
  std::vector<ValueId> named_or_null(const std::vector<std::optional<std::string>>& names,
                                     const std::vector<ValueType>& types, const std::string& pointer) const {
    if (names.size() != types.size()) {
      throw InputError(at(pointer),
                       fmt::format("expected {} names or nulls, found {}", types.size(), names.size()));
    }
    std::vector<ValueId> ids(names.size(), kNoValue);
    for (std::size_t i = 0; i < names.size(); ++i) {
      if (!names[i]) continue;
      const InputPlace place = at(fmt::format("{}/{}", pointer, i));
      ids[i] = values_.found(*names[i], place);
      values_.require_type(ids[i], types[i], place);
    }
    return ids;
  }

  std::vector<ValueId> kept(const std::vector<std::string>& names, const std::string& pointer) const {
    std::vector<ValueId> ids;
    for (std::size_t i = 0; i < names.size(); ++i) {
      const InputPlace place = at(fmt::format("{}/{}", pointer, i));
      const ValueId id = values_.found(names[i], place);
      const bool at_hand = graph_.parameter(0) <= id && id < graph_.field(0);
      if (at_hand) {
        throw InputError(
            place,
            fmt::format("\"{}\" need not be kept: only inputs, gradients, fields and results are", names[i]));
      }
      if (std::find(ids.begin(), ids.end(), id) != ids.end()) {
        throw InputError(place, fmt::format("\"{}\" is kept twice", names[i]));
      }
      ids.push_back(id);
    }
    return ids;
  }

  /// The value must not share the memory of a buffer that a training forward writes (`of_any`: of any buffer).
  void not_of_changing(ValueId id, const std::string& pointer, bool of_any = false) const {
    const std::int32_t buffer = values_[id].buffer;
    if (buffer < 0) return;
    if (!of_any && graph_.new_buffers[static_cast<std::size_t>(buffer)] == kNoValue) return;
    throw InputError(at(pointer),
                     fmt::format("is a view of u{}, which the forward changes; clone it", buffer));
  }

  void note_buffers_read_back() {
    std::set<ValueId> read;
    for (const Step& step : graph_.backward_input) {
      for (const Argument& argument : step.arguments)
        read.insert(argument.values.begin(), argument.values.end());
    }
    read.insert(graph_.input_gradients.begin(), graph_.input_gradients.end());
    for (std::size_t i = 0; i < graph_.buffers.size(); ++i) {
      if (!read.contains(graph_.buffer(i))) continue;
      if (graph_.new_buffers[i] != kNoValue) {
        throw InputError(
            at("backward_input/steps"),
            fmt::format("read u{}, which another micro-batch's forward may have changed; keep what "
                        "they need of it",
                        i));
      }
      graph_.buffers_read_back.push_back(graph_.buffer(i));
    }
  }

  Graph graph_;
  GraphValues values_;
  StepParser steps_;
};

}  // namespace

std::string graph_hash(std::string_view bytes) { return sha256(bytes).substr(0, kGraphHashDigits); }

std::shared_ptr<const Graph> read_graph(const std::string& folder, const std::string& hash) {
  const std::string path = folder + "/graphs/" + hash + ".json";
  const std::string bytes = read_file(path, kMostFileBytes);
  if (const std::string actual = graph_hash(bytes); actual != hash) {
    throw InputError(
        {path, ""},
        fmt::format("its SHA-256 begins with {}: the file was changed, or named by hand", actual));
  }
  return std::make_shared<const Graph>(GraphReader(path, hash).read(json::parse_text(bytes, path)));
}

}  // namespace stagecraft::captured
