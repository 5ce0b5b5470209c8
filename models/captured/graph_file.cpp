#include "stagecraft/models/captured/graph_file.h"

#include "stagecraft/base/files.h"
#include "stagecraft/base/json.h"
#include "stagecraft/base/sha256.h"
#include "stagecraft/models/captured/argument_rules.h"
#include "stagecraft/models/captured/arguments.h"
#include "stagecraft/models/captured/operators.h"
#include "stagecraft/models/random.h"

#include <ATen/core/jit_type.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <set>
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
  v.required("format", g.format, "of the file", json::between(2, 2));
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
constexpr std::size_t kMostSteps = 50'000, kMostTensors = 10'000;

enum class Part : std::uint8_t { forward, backward_input, backward_weight, evaluate };

/// Reads the parts of one graph in their order, keeping account of which values there are.
class GraphReader {
 public:
  GraphReader(std::string file, std::string hash) : place_{std::move(file), ""} {
    graph_.hash = std::move(hash);
  }

  Graph read(const Json& json) {
    const auto file = json::read<GraphFile>(json, place_);
    graph_.multiply_adds = file.multiply_adds;
    graph_.parameters = types(file.parameters, "parameters", false);
    graph_.buffers = types(file.buffers, "buffers", false);
    graph_.constants = types(file.constants, "constants", false);
    graph_.fields = types(file.fields, "fields", true);
    graph_.inputs = types(file.inputs, "inputs", true);
    graph_.outputs = types(file.outputs, "outputs", true);
    tells_b(graph_.inputs, "inputs", [](const ValueType&) { return true; });
    const bool number = graph_.outputs.size() == 1 && graph_.outputs[0].sizes.empty();  // a loss
    if (!number) {
      tells_b(graph_.outputs, "outputs", [](const ValueType& t) { return c10::isFloatingType(t.dtype); });
    }
    forward(file.forward);
    backward_input(file.backward_input);
    backward_weight(file.backward_weight);
    evaluate(file.evaluate);
    return std::move(graph_);
  }

 private:
  [[nodiscard]] InputPlace at(const std::string& pointer) const {
    return {place_.file, place_.pointer + "/" + pointer};
  }
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
    }
    return all;
  }

  /// Values that every part may begin from.
  std::vector<Value> given() const {
    std::vector<Value> values;
    for (const ValueType& type : graph_.inputs) values.push_back({type});
    for (const ValueType& type : graph_.outputs) values.push_back({type});
    for (const ValueType& type : graph_.parameters) values.push_back({type});
    for (std::size_t i = 0; i < graph_.buffers.size(); ++i) {
      values.push_back({graph_.buffers[i], static_cast<std::int32_t>(i)});
    }
    for (const ValueType& type : graph_.constants) values.push_back({type});
    for (const ValueType& type : graph_.fields) values.push_back({type});
    return values;
  }

  /// Begins a part that may read values from `first` up to `end`.
  void open(ValueId first, ValueId end) {
    std::fill(readable_.begin() + first, readable_.begin() + end, true);
  }
  void begin(Part part, std::vector<Value>& values) {
    part_ = part;
    values_ = &values;
    readable_.assign(values.size(), false);
    open(graph_.constant(0), graph_.field(0));
    if (part == Part::forward || part == Part::evaluate) open(graph_.field(0), graph_.result(0));
    if (part != Part::backward_weight) open(graph_.parameter(0), graph_.constant(0));
  }

  void forward(const ForwardPart& part) {
    graph_.values = given();
    begin(Part::forward, graph_.values);
    open(Graph::input(0), graph_.gradient(0));
    read_steps(part.steps, "forward", graph_.forward);
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
    begin(Part::backward_input, graph_.values);
    for (std::size_t i = 0; i < graph_.outputs.size(); ++i) {
      readable_[static_cast<std::size_t>(graph_.gradient(i))] = c10::isFloatingType(graph_.outputs[i].dtype);
    }
    for (const ValueId id : graph_.keep_input) readable_[static_cast<std::size_t>(id)] = true;
    read_steps(part.steps, "backward_input", graph_.backward_input);
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
    begin(Part::backward_weight, graph_.values);
    bool knows_b = false;
    for (const auto* names : {&graph_.keep_weight, &graph_.hand_on}) {
      for (const ValueId id : *names) {
        readable_[static_cast<std::size_t>(id)] = true;
        knows_b = knows_b || graph_.values[static_cast<std::size_t>(id)].type.depends_on_b();
      }
    }
    read_steps(part.steps, "backward_weight", graph_.backward_weight);
    if (!knows_b && depend_on_b(graph_.backward_weight)) {
      throw InputError(
          at("backward_weight/steps"),
          "nothing is kept for them whose size depends on b; make these values in backward_input");
    }
    graph_.gradients = named_or_null(part.gradients, graph_.parameters, "backward_weight/gradients");
    note_products();
  }

  [[nodiscard]] bool depend_on_b(const Steps& steps) const {
    const auto has_b = [](const AffineSize& size) { return size.depends_on_b(); };
    return std::any_of(steps.begin(), steps.end(), [&](const Step& step) {
      return std::any_of(step.results.begin(), step.results.end(),
                         [&](ValueId id) { return id != kNoValue && value(id).type.depends_on_b(); }) ||
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
      graph_.products[static_cast<std::size_t>(made - graph_.gradients.begin())] = {
          step.arguments[0].values[0], step.arguments[1].values[0]};
    }
  }

  void evaluate(const EvaluatePart& part) {
    graph_.evaluate_values = given();
    makers_.clear();  // values are numbered anew
    begin(Part::evaluate, graph_.evaluate_values);
    open(Graph::input(0), graph_.gradient(0));
    read_steps(part.steps, "evaluate", graph_.evaluate);
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
      const std::string inside = fmt::format("{}/{}", pointer, i);
      ids[i] = found(*names[i], at(inside));
      require_type(ids[i], types[i], inside);
    }
    return ids;
  }

  std::vector<ValueId> kept(const std::vector<std::string>& names, const std::string& pointer) const {
    std::vector<ValueId> ids;
    for (std::size_t i = 0; i < names.size(); ++i) {
      const InputPlace place = at(fmt::format("{}/{}", pointer, i));
      const ValueId id = found(names[i], place);
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

  void require_type(ValueId id, const ValueType& type, const std::string& pointer) const {
    const ValueType& found = (*values_)[static_cast<std::size_t>(id)].type;
    if (found == type) return;
    throw InputError(at(pointer),
                     fmt::format("expected a value of type {}, this is {}", type.text(), found.text()));
  }

  /// The value must not share the memory of a buffer that a training forward writes (`of_any`: of any buffer).
  void not_of_changing(ValueId id, const std::string& pointer, bool of_any = false) const {
    const std::int32_t buffer = graph_.values[static_cast<std::size_t>(id)].buffer;
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

  // Values

  /// Throws InputError unless `name` is a value that this part can read by now.
  ValueId found(const std::string& name, const InputPlace& place) const {
    const std::optional<ValueId> id = id_of(name);
    if (!id) throw InputError(place, fmt::format("there is no value {} by now", json::brief(name)));
    if (!readable_[static_cast<std::size_t>(*id)]) {
      throw InputError(place, fmt::format("\"{}\" cannot be read here: {}", name,
                                          part_ == Part::backward_weight || part_ == Part::backward_input
                                              ? "it is not kept for this part"
                                              : "this part does not have it"));
    }
    return *id;
  }

  std::optional<ValueId> id_of(const std::string& name) const {
    const std::size_t letters = name.starts_with("in") ? 2 : 1;
    if (name.size() <= letters) return std::nullopt;
    const std::optional<std::size_t> number = number_in(name.substr(letters));
    if (!number) return std::nullopt;
    const auto within = [&](ValueId first, ValueId end) -> std::optional<ValueId> {
      if (*number >= static_cast<std::size_t>(end - first)) return std::nullopt;
      return first + static_cast<ValueId>(*number);
    };
    switch (name[0]) {
      case 'i':
        return letters == 2 ? within(Graph::input(0), graph_.gradient(0)) : std::nullopt;
      case 'g':
        return within(graph_.gradient(0), graph_.parameter(0));
      case 'p':
        return within(graph_.parameter(0), graph_.buffer(0));
      case 'u':
        return within(graph_.buffer(0), graph_.constant(0));
      case 'c':
        return within(graph_.constant(0), graph_.field(0));
      case 'f':
        return within(graph_.field(0), graph_.result(0));
      case '%':
        return within(graph_.result(0), static_cast<ValueId>(values_->size()));
      default:
        return std::nullopt;
    }
  }

  /// Of digits without a leading zero.
  static std::optional<std::size_t> number_in(std::string_view text) {
    std::size_t number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    const bool whole = error == std::errc() && end == text.data() + text.size();
    if (!whole || (text.size() > 1 && text[0] == '0')) return std::nullopt;
    return number;
  }

  // Steps

  void read_steps(const Json& json, const std::string& part, Steps& steps) {
    const std::string pointer = part + "/steps";
    if (!json.is_array()) json::detail::wrong(at(pointer), json, "a list of steps");
    if (json.size() > kMostSteps) {
      throw InputError(at(pointer), fmt::format("{} steps; a part has at most {}", json.size(), kMostSteps));
    }
    for (std::size_t i = 0; i < json.size(); ++i)
      steps.push_back(step(json[i], fmt::format("{}/{}", pointer, i)));
  }

  Step step(const Json& json, const std::string& pointer) {
    if (!json.is_array() || json.size() != 3 || !json[0].is_string() || !json[1].is_array() ||
        !json[2].is_array()) {
      json::detail::wrong(at(pointer), json, "[\"OPERATOR\", [results], [arguments]]");
    }
    Step step;
    step.name = json[0].get<std::string>();
    if (step.name == "stagecraft::dropout" || step.name == "stagecraft::dropout_apply") {
      own(step, json, pointer);
    } else if (step.name == "stagecraft::bernoulli" || step.name == "stagecraft::uniform") {
      noise(step, json, pointer);
    } else {
      listed(step, json, pointer);
    }
    return step;
  }

  void listed(Step& step, const Json& json, const std::string& pointer) {
    const Operator* op = find_operator(step.name);
    if (op == nullptr) {
      throw InputError(at(pointer + "/0"),
                       fmt::format("operator {} is not in the list of those that a captured "
                                   "model may use{}",
                                   json::brief(step.name), similar_operator(step.name)));
    }
    step.op = handle_of(*op);
    const c10::FunctionSchema& schema = step.op->schema();
    arguments(step, json[2], pointer, schema.arguments());
    check_condition(step, *op, pointer);
    check_rules(step, pointer);
    const std::vector<c10::Argument>& returns = schema.returns();
    step.returns_list = returns.size() == 1 && returns[0].type()->kind() == c10::TypeKind::ListType;
    results(step, json[1], pointer, step.returns_list ? std::nullopt : std::optional(returns.size()));
    if (!step.arguments.empty() && step.arguments[0].kind == Argument::Kind::value) {
      for (const ValueId id : step.results) {
        if (id != kNoValue) makers_[id] = {step.name, value(step.arguments[0].values[0]).type};
      }
    }
    if (op->effect == Effect::view && !step.arguments.empty() &&
        step.arguments[0].kind == Argument::Kind::value) {
      const std::int32_t buffer = value(step.arguments[0].values[0]).buffer;
      for (const ValueId id : step.results) {
        if (id != kNoValue) value(id).buffer = buffer;
      }
    }
  }

  Value& value(ValueId id) const { return (*values_)[static_cast<std::size_t>(id)]; }

  void arguments(Step& step, const Json& json, const std::string& pointer,
                 const std::vector<c10::Argument>& schema) const {
    if (json.size() != schema.size()) {
      throw InputError(at(pointer + "/2"),
                       fmt::format("{} takes {} arguments, found {}", step.name, schema.size(), json.size()));
    }
    const FindValue find = [this](const std::string& name, const InputPlace& place) {
      return found(name, place);
    };
    for (std::size_t i = 0; i < json.size(); ++i) {
      step.arguments.push_back(
          read_argument(json[i], at(fmt::format("{}/2/{}", pointer, i)), schema[i], find));
    }
  }

  /// Without a number they are as many as the file says: a list is as long as its input has it.
  void results(Step& step, const Json& json, const std::string& pointer, std::optional<std::size_t> number) {
    const std::size_t expected = number.value_or(json.size());
    if (json.size() != expected || json.size() > kMostTensors) {
      throw InputError(at(pointer + "/1"),
                       fmt::format("{} has {} results, found {}", step.name, expected, json.size()));
    }
    for (std::size_t i = 0; i < json.size(); ++i) {
      step.results.push_back(json[i].is_null() ? kNoValue
                                               : result(json[i], at(fmt::format("{}/1/{}", pointer, i))));
    }
  }

  /// "%3 f32[b,8]", 3 being the next number.
  ValueId result(const Json& json, const InputPlace& place) {
    if (!json.is_string()) json::detail::wrong(place, json, "\"%N TYPE\" or null");
    const auto& text = json.get_ref<const std::string&>();
    const std::string next =
        fmt::format("%{} ", values_->size() - static_cast<std::size_t>(graph_.result(0)));
    if (!text.starts_with(next)) {
      throw InputError(place,
                       fmt::format("expected \"{}TYPE\": results are numbered in their order; found {}", next,
                                   json::brief(json)));
    }
    values_->push_back({parse_value_type(std::string_view(text).substr(next.size()), place)});
    readable_.push_back(true);
    return static_cast<ValueId>(values_->size() - 1);
  }

  /// What kernels do not look at themselves (argument_rules.h).
  void check_rules(const Step& step, const std::string& pointer) const {
    const auto named = [&](const std::string& name) -> const Argument* {
      const std::optional<int> at = step.op->schema().argumentIndexWithName(name);
      return at ? &step.arguments[static_cast<std::size_t>(*at)] : nullptr;
    };
    const auto tensor = [&](const std::string& name) -> std::optional<ValueId> {
      const Argument* argument = named(name);
      if (argument == nullptr || argument->kind != Argument::Kind::value) return std::nullopt;
      return argument->values[0];
    };
    const std::string broken =
        broken_rule({step,
                     [&](const std::string& name) -> std::optional<ValueType> {
                       const std::optional<ValueId> id = tensor(name);
                       return id ? std::optional(value(*id).type) : std::nullopt;
                     },
                     [&](const std::string& name) {
                       const Argument* argument = named(name);
                       if (argument == nullptr) return std::size_t{0};
                       return argument->kind == Argument::Kind::constant
                                  ? argument->constant.toIntVector().size()
                                  : argument->sizes.size();
                     },
                     [&](const std::string& name) -> std::pair<std::string, ValueType> {
                       const std::optional<ValueId> id = tensor(name);
                       const auto found = id ? makers_.find(*id) : makers_.end();
                       return found == makers_.end() ? std::pair<std::string, ValueType>() : found->second;
                     }});
    if (!broken.empty()) throw InputError(at(pointer + "/2"), fmt::format("{}: {}", step.name, broken));
  }

  void check_condition(const Step& step, const Operator& op, const std::string& pointer) const {
    const auto argument = [&](const char* name) -> const Argument& {
      const std::optional<int> at = step.op->schema().argumentIndexWithName(name);
      STAGECRAFT_CHECK(at.has_value(), fmt::format("{} has no argument {}", step.name, name));
      return step.arguments[static_cast<std::size_t>(*at)];
    };
    const auto absent = [&](const char* name) {
      return argument(name).kind == Argument::Kind::constant && argument(name).constant.isNone();
    };
    if (op.condition == Condition::no_dropout && argument("dropout_p").constant.toDouble() != 0) {
      throw InputError(
          at(pointer + "/2"),
          fmt::format("{} with dropout would draw random numbers of its own; expected dropout_p 0",
                      step.name));
    }
    if (op.condition == Condition::no_running_mean && argument("training").constant.toBool() &&
        !(absent("running_mean") && absent("running_var"))) {
      throw InputError(at(pointer + "/2"),
                       fmt::format("{} in training would write to its running statistics; "
                                   "use aten::_native_batch_norm_legit_functional",
                                   step.name));
    }
  }

  // Stagecraft's own: (x, p, stream) -> (dropped, mask) and (x, mask, p) -> dropped.
  void own(Step& step, const Json& json, const std::string& pointer) {
    const Json& arguments = json[2];
    const bool draws = step.name == "stagecraft::dropout";
    step.own = draws ? Step::Own::dropout : Step::Own::dropout_apply;
    if (draws) only_in_forward(pointer);
    require_arguments(step, arguments, 3, pointer);
    const auto tensor = [&](std::size_t i) {
      std::string name;
      const InputPlace place = at(fmt::format("{}/2/{}", pointer, i));
      json::read_value(arguments[i], place, name, json::Range{});
      step.arguments.push_back({Argument::Kind::value, {}, {found(name, place)}});
      return value(step.arguments.back().values[0]).type;
    };
    const std::size_t p = draws ? 1 : 2;
    const InputPlace p_place = at(fmt::format("{}/2/{}", pointer, p));
    json::read_value(arguments[p], p_place, step.probability, json::from_up_to(0, 1));
    if (std::lround(step.probability * 65536) > 65535) {  // models/dropout.h holds 16 bits of it
      throw InputError(p_place, fmt::format("{} is too close to 1", step.probability));
    }
    const ValueType x = tensor(0);
    if (!c10::isFloatingType(x.dtype)) {
      throw InputError(at(pointer + "/2/0"),
                       fmt::format("dropout takes floating-point numbers, this is {}", x.text()));
    }
    if (draws) {
      read_stream(step, arguments, 2, pointer);
    } else if (const ValueType mask = tensor(1); mask != ValueType{at::kBool, x.sizes}) {
      throw InputError(at(pointer + "/2/1"),
                       fmt::format("expected a mask for {}, this is {}", x.text(), mask.text()));
    }
    results(step, json[1], pointer, draws ? 2 : 1);
    for (std::size_t i = 0; i < step.results.size(); ++i) {
      const ValueType type = i == 0 ? x : ValueType{at::kBool, x.sizes};
      if (step.results[i] != kNoValue)
        require_type(step.results[i], type, fmt::format("{}/1/{}", pointer, i));
    }
  }

  // Stagecraft's own: (p, stream) -> ones with probability p, and (stream) -> numbers from [0, 1). Their result's
  // type says which and how many.
  void noise(Step& step, const Json& json, const std::string& pointer) {
    const bool ones = step.name == "stagecraft::bernoulli";
    step.own = ones ? Step::Own::bernoulli : Step::Own::uniform;
    only_in_forward(pointer);
    require_arguments(step, json[2], ones ? 2 : 1, pointer);
    if (ones) {
      json::read_value(json[2][0], at(pointer + "/2/0"), step.probability, json::between(0.0, 1.0));
    }
    read_stream(step, json[2], ones ? 1 : 0, pointer);
    results(step, json[1], pointer, 1);
    const InputPlace place = at(pointer + "/1/0");
    if (step.results[0] == kNoValue)
      throw InputError(place, "expected \"%N TYPE\": nothing reads what is drawn");
    if (const ValueType& type = value(step.results[0]).type; !c10::isFloatingType(type.dtype)) {
      throw InputError(place, fmt::format("expected a floating-point type, found {}", type.text()));
    }
  }

  void only_in_forward(const std::string& pointer) const {
    if (part_ == Part::forward) return;
    throw InputError(at(pointer + "/0"), "random numbers are drawn in forward alone; backward reads them");
  }

  void require_arguments(const Step& step, const Json& arguments, std::size_t number,
                         const std::string& pointer) const {
    if (arguments.size() == number) return;
    throw InputError(at(pointer + "/2"), fmt::format("{} takes {} argument{}, found {}", step.name, number,
                                                     number == 1 ? "" : "s", arguments.size()));
  }

  void read_stream(Step& step, const Json& arguments, std::size_t i, const std::string& pointer) {
    const InputPlace place = at(fmt::format("{}/2/{}", pointer, i));
    json::read_value(arguments[i], place, step.stream, json::between(0, kInitialStream - 1));
    if (streams_.insert(step.stream).second) return;
    throw InputError(place, fmt::format("stream {} is another step's", step.stream));
  }

  InputPlace place_;
  Graph graph_;
  Part part_ = Part::forward;
  std::vector<Value>* values_ = nullptr;
  std::vector<bool> readable_;  ///< by ValueId, in the part that is read
  std::set<std::uint32_t> streams_;
  std::map<ValueId, std::pair<std::string, ValueType>> makers_;  ///< step, and type of its first argument
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
