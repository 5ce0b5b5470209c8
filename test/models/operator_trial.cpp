#include "test/models/operator_trial.h"

#include "base/error.h"
#include "models/captured/format/graph_values.h"
#include "models/captured/format/step_parser.h"
#include "models/captured/operators/operators.h"
#include "models/captured/replay/replay.h"
#include "models/captured/replay/step_work.h"
#include "test/models/operator_calls.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

namespace stagecraft::test {
namespace {

using captured::ValueId;

constexpr const char* kUnknown = "i32[77]";

void declare(ResultTypes& types, std::size_t step, std::size_t count) {
  std::erase_if(types, [&](const auto& type) { return type.first.first == step; });
  for (std::size_t r = 0; r < count; ++r) types[{step, r}] = kUnknown;
}

Json written(const Json& argument, const std::vector<std::vector<std::string>>& results) {
  if (argument.is_array()) {
    Json list = Json::array();
    for (const Json& each : argument) list.push_back(written(each, results));
    return list;
  }
  if (argument.is_object() && argument.contains("tensor")) {
    return fmt::format("c{}", argument["tensor"].get<std::size_t>());
  }
  if (argument.is_object() && argument.contains("step")) {
    return results.at(argument["step"].get<std::size_t>()).at(argument["result"].get<std::size_t>());
  }
  return argument;
}

}  // namespace

ResultTypes unknown_types(const Json& call) {
  ResultTypes types;
  for (std::size_t s = 0; s < call["steps"].size(); ++s) {
    const auto name = call["steps"][s][0].get<std::string>();
    const captured::Operator* op = captured::find_operator(name);
    declare(types, s,
            op != nullptr                   ? captured::handle_of(*op).schema().returns().size()
            : name == "stagecraft::dropout" ? 2
                                            : 1);
  }
  return types;
}

bool learn(ResultTypes& types, const Json& call, const std::string& error) {
  const auto between = [&](const std::string& before, const std::string& after) -> std::string {
    const std::size_t begin = error.find(before);
    if (begin == std::string::npos) return "";
    const std::size_t from = begin + before.size(), end = error.find(after, from);
    return end == std::string::npos ? "" : error.substr(from, end - from);
  };
  // ", aten::OP: result 1 is f32[2], its declared type ..."
  for (std::size_t s = 0; s < call["steps"].size(); ++s) {
    const auto name = call["steps"][s][0].get<std::string>();
    const std::string made = between(name + " makes ", " tensors, the graph says");
    if (!made.empty()) {
      declare(types, s, std::stoul(made));
      return true;
    }
    const std::string found = between(name + ": result ", ", its declared type");
    const std::size_t is = found.find(" is ");
    if (is == std::string::npos) continue;
    std::string& type = types[{s, std::stoul(found)}];
    if (type != kUnknown) continue;  // an earlier step of the same operator
    type = found.substr(is + 4) == "no tensor" ? "" : found.substr(is + 4);
    std::erase(type, ' ');
    return true;
  }
  // Stagecraft's own have types that follow from their arguments.
  const std::string at = between("forward/steps/", "expected a value of type ");
  const std::string type = between("expected a value of type ", fmt::format(", this is {}", kUnknown));
  if (type.empty() || at.find("/1/") == std::string::npos) return false;
  types[{std::stoul(at), std::stoul(at.substr(at.find("/1/") + 3))}] = type;
  return true;
}

OperatorTrial::OperatorTrial(const Json& call, std::size_t count, const ResultTypes& types) {
  for (const Json& spec : call["tensors"]) {
    tensors_.push_back(tensor_of(spec));
    captured::ValueType type{tensors_.back().scalar_type(), {}};
    for (const std::int64_t size : tensors_.back().sizes()) type.sizes.push_back({0, size});
    graph_.constants.push_back(type);
  }
  std::vector<std::vector<std::string>> results;
  Json steps = Json::array();
  int next = 0;
  for (std::size_t s = 0; s < count; ++s) {
    const Json& step = call["steps"][s];
    Json names = Json::array();
    results.emplace_back();
    for (std::size_t r = 0; types.contains({s, r}); ++r) {
      const std::string& type = types.at({s, r});
      results.back().push_back(type.empty() ? "?" : fmt::format("%{}", next));
      names.push_back(type.empty() ? Json() : Json(fmt::format("%{} {}", next++, type)));
    }
    steps.push_back(Json::array({step[0], names, written(step[1], results)}));
  }
  captured::GraphValues values(graph_, "call");
  captured::StepParser parser(values);
  values.begin(captured::Part::forward);
  graph_.forward = parser.read(steps, "forward/steps");
  for (const ValueId id : graph_.forward.back().results) {
    if (id != captured::kNoValue) outputs_.push_back(id);
  }
}

OperatorTrial::OperatorTrial(const Json& call)
    : OperatorTrial(call, call["steps"].size(), made_on_cpu(call).first) {}

Tensors OperatorTrial::run(c10::Device device, bool hold, MatrixProducts products, bool* ran) {
  for (const captured::Step& step : graph_.forward) (void)captured::work_of(step, graph_.values, 1);
  std::vector<ValueId> inputs;
  std::vector<c10::IValue> frame;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    inputs.push_back(graph_.constant(i));
    frame.emplace_back(tensors_[i].to(device));
  }
  if (!hold) tensors_.clear();
  const captured::Program program({"graph", graph_.forward, graph_.values, inputs, outputs_}, 1, device,
                                  products);
  *ran = true;
  return program.run(std::move(frame), {});
}

std::pair<ResultTypes, Tensors> made_on_cpu(const Json& call) {
  ResultTypes types = unknown_types(call);
  Tensors made;
  for (std::size_t count = 1; count <= call["steps"].size();) {
    try {
      bool ran = false;
      made = OperatorTrial(call, count, types).run(at::kCPU, true, MatrixProducts::blas, &ran);
      ++count;
    } catch (const InputError& error) {
      if (!learn(types, call, error.what())) throw;
    }
  }
  return {std::move(types), std::move(made)};
}

}  // namespace stagecraft::test
