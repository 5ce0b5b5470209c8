#include "models/captured/format/step_parser.h"

#include "models/captured/format/arguments.h"
#include "models/captured/operators/operators.h"
#include "models/tensors/random.h"

#include <ATen/core/jit_type.h>
#include <fmt/format.h>

#include <cmath>

namespace stagecraft::captured {
namespace {

constexpr std::size_t kMostSteps = 50'000;

/// Null where the operator's schema has no argument of that name.
const Argument* named(const Step& step, const std::string& name) {
  const std::optional<int> at = step.op->schema().argumentIndexWithName(name);
  return at ? &step.arguments[static_cast<std::size_t>(*at)] : nullptr;
}

void check_condition(const Step& step, const Operator& op, const InputPlace& place) {
  const auto argument = [&](const char* name) -> const Argument& {
    const Argument* found = named(step, name);
    STAGECRAFT_CHECK(found != nullptr, fmt::format("{} has no argument {}", step.name, name));
    return *found;
  };
  const auto absent = [&](const char* name) {
    return argument(name).kind == Argument::Kind::constant && argument(name).constant.isNone();
  };
  if (op.condition == Condition::no_dropout && argument("dropout_p").constant.toDouble() != 0) {
    throw InputError(
        place,
        fmt::format("{} with dropout would draw random numbers of its own; expected dropout_p 0", step.name));
  }
  if (op.condition == Condition::no_running_mean && argument("training").constant.toBool() &&
      !(absent("running_mean") && absent("running_var"))) {
    throw InputError(place, fmt::format("{} in training would write to its running statistics; "
                                        "use aten::_native_batch_norm_legit_functional",
                                        step.name));
  }
}

void require_arguments(const Step& step, const Json& arguments, std::size_t number, const InputPlace& place) {
  if (arguments.size() == number) return;
  throw InputError(place, fmt::format("{} takes {} argument{}, found {}", step.name, number,
                                      number == 1 ? "" : "s", arguments.size()));
}

/// The tensor that a step's first argument is.
std::optional<ValueId> first_tensor(const Step& step) {
  if (step.arguments.empty() || step.arguments[0].kind != Argument::Kind::value) return std::nullopt;
  return step.arguments[0].values[0];
}

}  // namespace

Steps StepParser::read(const Json& json, const std::string& pointer) {
  if (!json.is_array()) json::detail::wrong(at(pointer), json, "a list of steps");
  if (json.size() > kMostSteps) {
    throw InputError(at(pointer), fmt::format("{} steps; a part has at most {}", json.size(), kMostSteps));
  }
  Steps steps;
  for (std::size_t i = 0; i < json.size(); ++i) {
    steps.push_back(step(json[i], fmt::format("{}/{}", pointer, i)));
  }
  return steps;
}

Step StepParser::step(const Json& json, const std::string& pointer) {
  if (!json.is_array() || json.size() != 3 || !json[0].is_string() || !json[1].is_array() ||
      !json[2].is_array()) {
    json::detail::wrong(at(pointer), json, "[\"OPERATOR\", [results], [arguments]]");
  }
  Step step;
  step.name = json[0].get<std::string>();
  step.place = at(pointer);
  if (step.name == "stagecraft::dropout" || step.name == "stagecraft::dropout_apply") {
    dropout(step, json, pointer);
  } else if (step.name == "stagecraft::bernoulli" || step.name == "stagecraft::uniform" ||
             step.name == "stagecraft::normal" || step.name == "stagecraft::exponential") {
    noise(step, json, pointer);
  } else {
    listed(step, json, pointer);
  }
  return step;
}

void StepParser::listed(Step& step, const Json& json, const std::string& pointer) {
  const Operator* op = find_operator(step.name);
  if (op == nullptr) {
    throw InputError(at(pointer + "/0"),
                     fmt::format("operator {} is not in the list of those that a captured model may use{}",
                                 json::brief(step.name), similar_operator(step.name)));
  }
  step.op = handle_of(*op);
  const c10::FunctionSchema& schema = step.op->schema();
  arguments(step, json[2], pointer, schema.arguments());
  check_condition(step, *op, at(pointer + "/2"));
  const std::vector<c10::Argument>& returns = schema.returns();
  step.returns_list = returns.size() == 1 && returns[0].type()->kind() == c10::TypeKind::ListType;
  results(step, json[1], pointer, step.returns_list ? std::nullopt : std::optional(returns.size()));
  const std::optional<ValueId> first = first_tensor(step);
  if (!first) return;
  for (const ValueId id : step.results) {
    if (id == kNoValue) continue;
    values_[id].made_by = op->name;
    values_[id].made_from = *first;
    if (op->effect == Effect::view) values_[id].buffer = values_[*first].buffer;
  }
}

void StepParser::arguments(Step& step, const Json& json, const std::string& pointer,
                           const std::vector<c10::Argument>& schema) const {
  require_arguments(step, json, schema.size(), at(pointer + "/2"));
  const FindValue find = [this](const std::string& name, const InputPlace& place) {
    return values_.found(name, place);
  };
  for (std::size_t i = 0; i < json.size(); ++i) {
    step.arguments.push_back(read_argument(json[i], at(fmt::format("{}/2/{}", pointer, i)), schema[i], find));
  }
}

/// Without a number they are as many as the file says: a list is as long as its input has it.
void StepParser::results(Step& step, const Json& json, const std::string& pointer,
                         std::optional<std::size_t> number) {
  const std::size_t expected = number.value_or(json.size());
  if (json.size() != expected || json.size() > kMostTensors) {
    throw InputError(at(pointer + "/1"),
                     fmt::format("{} has {} results, found {}", step.name, expected, json.size()));
  }
  for (std::size_t i = 0; i < json.size(); ++i) {
    const InputPlace place = at(fmt::format("{}/1/{}", pointer, i));
    if (!json[i].is_null() && !json[i].is_string()) {
      json::detail::wrong(place, json[i], "\"%N TYPE\" or null");
    }
    step.results.push_back(json[i].is_null() ? kNoValue : values_.add(json[i].get<std::string>(), place));
  }
}

// Stagecraft's own: (x, p, stream) -> (dropped, mask) and (x, mask, p) -> dropped.
void StepParser::dropout(Step& step, const Json& json, const std::string& pointer) {
  const Json& arguments = json[2];
  const bool draws = step.name == "stagecraft::dropout";
  step.own = draws ? Step::Own::dropout : Step::Own::dropout_apply;
  if (draws) only_in_forward(pointer);
  require_arguments(step, arguments, 3, at(pointer + "/2"));
  const auto tensor = [&](std::size_t i) {
    std::string name;
    const InputPlace place = at(fmt::format("{}/2/{}", pointer, i));
    json::read_value(arguments[i], place, name, json::Range{});
    step.arguments.push_back({Argument::Kind::value, {}, {values_.found(name, place)}});
    return values_[step.arguments.back().values[0]].type;
  };
  const std::size_t p = draws ? 1 : 2;
  const InputPlace p_place = at(fmt::format("{}/2/{}", pointer, p));
  json::read_value(arguments[p], p_place, step.probability, json::from_up_to(0, 1));
  if (std::lround(step.probability * 65536) > 65535) {  // models/layers/dropout_masks.h holds 16 bits of it
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
    if (step.results[i] == kNoValue) continue;
    const ValueType type = i == 0 ? x : ValueType{at::kBool, x.sizes};
    values_.require_type(step.results[i], type, at(fmt::format("{}/1/{}", pointer, i)));
  }
}

// Stagecraft's own: (p, stream) -> ones with probability p, and (stream) -> numbers from [0, 1), or of the
// normal distribution, or of the exponential one. Their result's type says which and how many.
void StepParser::noise(Step& step, const Json& json, const std::string& pointer) {
  const bool ones = step.name == "stagecraft::bernoulli";
  step.own = ones                                     ? Step::Own::bernoulli
             : step.name == "stagecraft::uniform"     ? Step::Own::uniform
             : step.name == "stagecraft::exponential" ? Step::Own::exponential
                                                      : Step::Own::normal;
  only_in_forward(pointer);
  require_arguments(step, json[2], ones ? 2 : 1, at(pointer + "/2"));
  if (ones) {
    json::read_value(json[2][0], at(pointer + "/2/0"), step.probability, json::between(0.0, 1.0));
  }
  read_stream(step, json[2], ones ? 1 : 0, pointer);
  results(step, json[1], pointer, 1);
  const InputPlace place = at(pointer + "/1/0");
  if (step.results[0] == kNoValue) {
    throw InputError(place, "expected \"%N TYPE\": nothing reads what is drawn");
  }
  if (const ValueType& type = values_[step.results[0]].type; !c10::isFloatingType(type.dtype)) {
    throw InputError(place, fmt::format("expected a floating-point type, found {}", type.text()));
  }
}

void StepParser::only_in_forward(const std::string& pointer) const {
  if (values_.part() == Part::forward) return;
  throw InputError(at(pointer + "/0"), "random numbers are drawn in forward alone; backward reads them");
}

void StepParser::read_stream(Step& step, const Json& arguments, std::size_t i, const std::string& pointer) {
  const InputPlace place = at(fmt::format("{}/2/{}", pointer, i));
  int stream = 0;
  json::read_value(arguments[i], place, stream, json::between(0, kInitialStream - 1));
  step.stream = static_cast<std::uint32_t>(stream);
  if (streams_.insert(step.stream).second) return;
  throw InputError(place, fmt::format("stream {} is another step's", step.stream));
}

}  // namespace stagecraft::captured
