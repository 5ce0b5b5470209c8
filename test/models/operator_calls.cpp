#include "test/models/operator_calls.h"

#include "models/captured/format/value_type.h"
#include "models/captured/operators/operators.h"

#include <ATen/ATen.h>
#include <ATen/core/jit_type.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <fstream>
#include <limits>
#include <map>
#include <stdexcept>
#include <utility>

namespace stagecraft::test {
namespace {

using Integer = std::int64_t;
constexpr Integer kHighest = std::numeric_limits<Integer>::max();
constexpr Integer kLowest = std::numeric_limits<Integer>::min();
/// Larger than any tensor here, and no memory is needed for a tensor that is expanded to it.
constexpr Integer kWide = 100'003;

template <class T>
const T& one_of(const std::vector<T>& of, Random& random) {
  return of[random() % of.size()];
}
bool chance(Random& random, unsigned percent) { return random() % 100 < percent; }

// ---- Lines

class Lines {
 public:
  Json read(const Json& line) {
    (void)step(line);
    return call_;
  }

 private:
  std::size_t step(const Json& line) {
    const auto name = line.at(0).get<std::string>();
    const captured::Operator* op = captured::find_operator(name);
    std::vector<c10::Argument> schema;  // Stagecraft's own have none
    if (op != nullptr) schema = captured::handle_of(*op).schema().arguments();
    Json arguments = Json::array();
    for (std::size_t i = 1; i < std::max(line.size(), schema.size() + 1); ++i) {
      arguments.push_back(i < line.size() ? argument(line[i]) : usual(schema[i - 1]));
    }
    call_["steps"].push_back(Json::array({name, arguments}));
    return call_["steps"].size() - 1;
  }

  static Json usual(const c10::Argument& schema) {
    if (!schema.default_value()) return nullptr;
    const c10::IValue& value = *schema.default_value();
    if (value.isInt()) return value.toInt();
    if (value.isDouble()) return value.toDouble();
    if (value.isBool()) return value.toBool();
    if (value.isString()) return Json{{"string", value.toStringRef()}};
    if (value.isIntList()) return value.toIntVector();
    return nullptr;
  }

  Json argument(const Json& given) {
    if (given.is_string()) return tensor(given.get<std::string>());
    if (given.is_object() && given.contains("made")) {
      return Json{{"step", step(given["made"])}, {"result", given["take"]}};
    }
    if (!given.is_array()) return given;
    Json list = Json::array();
    for (const Json& each : given) list.push_back(argument(each));
    return list;
  }

  /// "x=i64[4]<10"
  Json tensor(std::string text) {
    std::string name;
    if (const std::size_t equals = text.find('='); equals != std::string::npos) {
      name = text.substr(0, equals);
      text = text.substr(equals + 1);
      if (name.empty()) return Json{{"tensor", named_.at(text)}};
    }
    Integer below = 2;
    if (const std::size_t less = text.find('<'); less != std::string::npos) {
      below = std::stoll(text.substr(less + 1));
      text.resize(less);
    }
    const captured::ValueType type = captured::parse_value_type(text, {});
    Json& tensors = call_["tensors"];
    tensors.push_back({{"type", captured::dtype_name(type.dtype)}, {"sizes", type.at(1)}, {"below", below}});
    if (!name.empty()) named_[name] = tensors.size() - 1;
    return Json{{"tensor", tensors.size() - 1}};
  }

  Json call_{{"tensors", Json::array()}, {"steps", Json::array()}};
  std::map<std::string, std::size_t> named_;
};

// ---- Changes

const std::vector<std::string> kTypes{"f32", "f64", "bf16", "f16", "i64", "i32", "bool", "c64", "c128"};
const std::vector<std::string> kLayouts{"dense",    "transposed",    "sliced",
                                        "expanded", "channels_last", "behind"};
const std::vector<std::string> kFills{"usual",   "minus one", "bound",       "beyond",
                                      "highest", "lowest",    "not a number"};

Integer near(Integer value, Random& random) {
  switch (random() % 8) {
    case 0:
    case 1:
      return value + 1;
    case 2:
    case 3:
      return value - 1;
    case 4:
      return value * 2;
    case 5:
      return -value;
    default:
      return one_of<Integer>({0, 1, -1, 2, 3, -2, 7, kWide, Integer{1} << 31U, (Integer{1} << 31U) - 1,
                              Integer{1} << 32U, Integer{1} << 61U, kHighest, kLowest, kLowest + 1},
                             random);
  }
}

void change_sizes(Json& sizes, Random& random) {
  const std::size_t count = sizes.size();
  const std::size_t at = count == 0 ? 0 : random() % count;
  switch (random() % 10) {
    case 0:
      if (count > 0) sizes.erase(at);
      return;
    case 1:
      sizes.insert(sizes.begin() + static_cast<std::ptrdiff_t>(at), 1 + random() % 3);
      return;
    case 2:
      if (count > 1) std::swap(sizes[at], sizes[random() % count]);
      return;
    case 3:
      if (count > 0) sizes[at] = 0;
      return;
    case 4:
      if (count > 0) sizes[at] = 1;
      return;
    case 5:
      if (count > 0) sizes[at] = kWide;
      return;
    case 6:
      if (count > 0) sizes[at] = sizes[at].get<Integer>() * 2;
      return;
    case 7:
    case 8:
      if (count > 0) sizes[at] = sizes[at].get<Integer>() + 1;
      return;
    default:
      if (count > 0) sizes[at] = std::max<Integer>(0, sizes[at].get<Integer>() - 1);
  }
}

void change_tensor(Json& spec, Random& random) {
  const bool integers = spec["type"].get<std::string>()[0] == 'i';
  switch (random() % (integers ? 10 : 8)) {
    case 0:
      spec["type"] = one_of(kTypes, random);
      return;
    case 1:
    case 2:
      spec["layout"] = one_of(kLayouts, random);
      return;
    case 3:
      spec["values"] = one_of(kFills, random);
      return;
    case 8:
    case 9:
      spec["values"] = one_of(kFills, random);
      return;
    default:
      change_sizes(spec["sizes"], random);
      if (spec["sizes"].dump().find(std::to_string(kWide)) != std::string::npos && chance(random, 60)) {
        spec["layout"] = "expanded";
      }
  }
}

void change_number(Json& value, Random& random) {
  static const std::vector<Json> numbers{0,
                                         -1,
                                         1,
                                         0.5,
                                         -0.5,
                                         1e-30,
                                         1e30,
                                         1e300,
                                         1e-300,
                                         -1e30,
                                         3e9,
                                         {{"float", "inf"}},
                                         {{"float", "-inf"}},
                                         {{"float", "nan"}},
                                         1e-12,
                                         true};
  value = one_of(numbers, random);
}

void change_value(Json& value, const Json& call, Random& random);

void change_list(Json& list, const Json& call, Random& random) {
  const std::size_t at = list.empty() ? 0 : random() % list.size();
  switch (random() % 8) {
    case 0:
      if (!list.empty()) list.erase(at);
      return;
    case 1:
      list.insert(list.begin() + static_cast<std::ptrdiff_t>(at), list.empty() ? Json(1) : Json(list[at]));
      return;
    case 2:
      list = Json::array();
      return;
    case 3:
      if (list.size() > 1) std::swap(list[at], list[random() % list.size()]);
      return;
    default:
      if (!list.empty()) change_value(list[at], call, random);
  }
}

void change_value(Json& value, const Json& call, Random& random) {
  static const std::vector<Json> types{nullptr,
                                       {{"dtype", "f32"}},
                                       {{"dtype", "f64"}},
                                       {{"dtype", "bf16"}},
                                       {{"dtype", "i64"}},
                                       {{"dtype", "bool"}}};
  static const std::vector<Json> formats{nullptr,
                                         {{"format", "contiguous"}},
                                         {{"format", "preserve"}},
                                         {{"format", "channels_last"}},
                                         {{"format", "channels_last_3d"}}};
  static const std::vector<Json> strings{
      {{"string", "none"}},     {{"string", "tanh"}},  {{"string", "reflect"}}, {{"string", "replicate"}},
      {{"string", "circular"}}, {{"string", "trunc"}}, {{"string", "floor"}},   {{"string", "?"}}};
  if (value.is_array()) return change_list(value, call, random);
  if (value.is_boolean()) {
    value = !value.get<bool>();
  } else if (value.is_number_integer()) {
    if (chance(random, 90)) {
      value = near(value.get<Integer>(), random);
    } else {
      change_number(value, random);
    }
  } else if (value.is_number()) {
    change_number(value, random);
  } else if (value.is_null()) {
    static const std::vector<Json> others{0,
                                          1,
                                          -1,
                                          2,
                                          0.5,
                                          true,
                                          {0},
                                          {1},
                                          {1, 2},
                                          {{"dtype", "f64"}},
                                          {{"dtype", "f32"}},
                                          {{"format", "channels_last"}},
                                          {{"string", "floor"}},
                                          {{"float", "nan"}}};
    value = !call["tensors"].empty() && chance(random, 50)
                ? Json{{"tensor", random() % call["tensors"].size()}}
                : one_of(others, random);
  } else if (value.contains("dtype")) {
    value = one_of(types, random);
  } else if (value.contains("format")) {
    value = one_of(formats, random);
  } else if (value.contains("string")) {
    value = one_of(strings, random);
  } else if (value.contains("float")) {
    change_number(value, random);
  } else if (value.contains("tensor") || value.contains("step")) {
    switch (random() % 4) {
      case 0:
        value = nullptr;
        return;
      case 1:
        value = Json{{"scalar", 0.5}};
        return;
      default:
        if (!call["tensors"].empty()) value = Json{{"tensor", random() % call["tensors"].size()}};
    }
  } else {
    value = nullptr;
  }
}

}  // namespace

Json call_of(const Json& line) { return Lines().read(line); }

std::vector<Json> plain_calls(const std::string& name) {
  const captured::Operator* op = captured::find_operator(name);
  if (op == nullptr) return {};
  const std::vector<c10::Argument>& schema = captured::handle_of(*op).schema().arguments();
  std::vector<Json> calls;
  for (const char* type : {"f32[2,3]", "i64[2,3]<3", "bool[2,3]"}) {
    Json line = Json::array({name});
    bool known = true;
    for (const c10::Argument& argument : schema) {
      switch (argument.type()->kind()) {
        case c10::TypeKind::TensorType:
          line.push_back(argument.name() == "condition" || argument.name() == "mask" ? "bool[2,3]" : type);
          break;
        case c10::TypeKind::NumberType:
        case c10::TypeKind::FloatType:
          line.push_back(argument.default_value() ? Json(1) : type[0] == 'f' ? Json(0.5) : Json(2));
          break;
        case c10::TypeKind::IntType:
        case c10::TypeKind::SymIntType:
          line.push_back(1);
          break;
        case c10::TypeKind::BoolType:
          line.push_back(false);
          break;
        case c10::TypeKind::StringType:
          line.push_back(
              {{"string", argument.default_value() ? argument.default_value()->toStringRef() : "none"}});
          break;
        case c10::TypeKind::OptionalType:
        case c10::TypeKind::MemoryFormatType:
          line.push_back(argument.type()->kind() == c10::TypeKind::OptionalType
                             ? Json()
                             : Json{{"format", "contiguous"}});
          break;
        default:
          known = false;
      }
    }
    if (known) calls.push_back(call_of(line));
  }
  return calls;
}

std::map<std::string, std::vector<Json>> valid_calls(const std::string& path) {
  std::map<std::string, std::vector<Json>> calls{{"stagecraft::dropout", {}},
                                                 {"stagecraft::dropout_apply", {}}};
  for (const captured::Operator& op : captured::operators()) calls[op.name] = plain_calls(op.name);
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot read " + path);
  for (std::string line; std::getline(file, line);) {
    const Json json = Json::parse(line);
    // Other versions of LibTorch have operators that this one lacks.
    if (const auto its = calls.find(json.at(0)); its != calls.end()) its->second.push_back(call_of(json));
  }
  return calls;
}

Json changed(const Json& call, Random& random) {
  Json made = call;
  const unsigned changes = chance(random, 55) ? 1 : chance(random, 75) ? 2 : 3;
  for (unsigned i = 0; i < changes; ++i) {
    Json& tensors = made["tensors"];
    Json& steps = made["steps"];
    if (!tensors.empty() && chance(random, 50)) {
      change_tensor(tensors[random() % tensors.size()], random);
      continue;
    }
    // Most often the last step: those before it are called by others.
    Json& step = chance(random, 75) ? steps.back() : steps[random() % steps.size()];
    if (step[1].empty()) continue;
    Json& argument = step[1][random() % step[1].size()];
    if ((argument.contains("tensor") || argument.contains("step")) && chance(random, 60)) {
      if (argument.contains("tensor")) {  // a tensor of its own, where others share it
        tensors.push_back(tensors[argument["tensor"].get<std::size_t>()]);
        argument = Json{{"tensor", tensors.size() - 1}};
        change_tensor(tensors.back(), random);
      }
      continue;
    }
    change_value(argument, made, random);
  }
  return made;
}

at::Tensor tensor_of(const Json& spec) {
  const at::ScalarType type = captured::dtype_named(spec.at("type").get<std::string>()).value();
  const auto sizes = spec.at("sizes").get<std::vector<Integer>>();
  const auto below = spec.at("below").get<Integer>();
  const std::string layout = spec.value("layout", "dense"), values = spec.value("values", "usual");
  const auto filled = [&](std::vector<Integer> shape) {
    at::Tensor tensor = at::empty(shape, type);
    if (tensor.numel() == 0) return tensor;
    const bool integer = type == at::kLong || type == at::kInt;
    const Integer most = type == at::kInt ? std::numeric_limits<std::int32_t>::max() : kHighest;
    const Integer least = type == at::kInt ? std::numeric_limits<std::int32_t>::min() : kLowest;
    tensor.copy_(integer ? at::arange(tensor.numel()).remainder(std::max<Integer>(below, 1)).view(shape)
                 : type == at::kBool
                     ? at::arange(tensor.numel()).remainder(3).eq(0).view(shape)
                     : at::arange(tensor.numel(), at::kDouble).mul(0.37).sin().mul(0.4).add(0.5).view(shape));
    at::Tensor last = tensor.view({-1}).narrow(0, tensor.numel() - 1, 1);
    if (values == "minus one") last.fill_(-1);
    if (values == "bound") integer ? last.fill_(below) : last.fill_(0);
    if (values == "beyond") integer ? last.fill_(100'000'000) : last.fill_(1e30);
    if (values == "highest") integer ? last.fill_(most) : last.fill_(std::numeric_limits<double>::infinity());
    if (values == "lowest")
      integer ? last.fill_(least) : last.fill_(-std::numeric_limits<double>::infinity());
    if (values == "not a number")
      integer ? tensor.fill_(1'000'000) : last.fill_(std::numeric_limits<double>::quiet_NaN());
    return tensor;
  };
  std::vector<Integer> shape = sizes;
  if (shape.empty() || layout == "dense") return filled(shape);
  if (layout == "transposed") {
    std::swap(shape.front(), shape.back());
    return filled(shape).transpose(0, -1);
  }
  if (layout == "sliced") {
    shape.back() *= 2;
    return filled(shape).slice(-1, 1, shape.back(), 2);
  }
  if (layout == "expanded") {
    std::fill(shape.begin(), shape.end(), 1);
    return filled(shape).expand(sizes);
  }
  if (layout == "channels_last" && shape.size() == 4)
    return filled(shape).contiguous(at::MemoryFormat::ChannelsLast);
  if (layout == "behind") {
    shape.front() += 1;
    return filled(shape).narrow(0, 1, sizes.front());
  }
  return filled(shape);
}

}  // namespace stagecraft::test
