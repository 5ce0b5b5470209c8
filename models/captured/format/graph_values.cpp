#include "models/captured/format/graph_values.h"

#include "base/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string_view>

namespace stagecraft::captured {
namespace {

/// Of digits without a leading zero.
std::optional<std::size_t> number_in(std::string_view text) {
  std::size_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  if (!whole || (text.size() > 1 && text[0] == '0')) return std::nullopt;
  return number;
}

}  // namespace

/// Values that every part may begin from.
std::vector<Value> GraphValues::given() const {
  std::vector<Value> values;
  const auto add_all = [&](const std::vector<ValueType>& types) {
    for (const ValueType& type : types) values.push_back({type});
  };
  add_all(graph_.inputs);
  add_all(graph_.outputs);
  add_all(graph_.parameters);
  for (std::size_t i = 0; i < graph_.buffers.size(); ++i) {
    values.push_back({graph_.buffers[i], static_cast<std::int32_t>(i)});
  }
  add_all(graph_.constants);
  add_all(graph_.fields);
  return values;
}

void GraphValues::begin(Part part) {
  part_ = part;
  const bool forward = part == Part::forward || part == Part::evaluate;
  all_ = part == Part::evaluate ? &graph_.evaluate_values : &graph_.values;
  if (forward) *all_ = given();
  readable_.assign(all_->size(), false);
  let_read(graph_.constant(0), graph_.field(0));
  if (part != Part::backward_weight) let_read(graph_.parameter(0), graph_.constant(0));
  if (!forward) return;
  let_read(graph_.field(0), graph_.result(0));
  let_read(Graph::input(0), graph_.gradient(0));
}

void GraphValues::let_read(ValueId first, ValueId end) {
  std::fill(readable_.begin() + first, readable_.begin() + end, true);
}

ValueId GraphValues::found(const std::string& name, const InputPlace& place) const {
  const std::optional<ValueId> id = value_named(graph_, name, all_->size());
  if (!id) throw InputError(place, fmt::format("there is no value {} by now", json::brief(name)));
  if (readable_[static_cast<std::size_t>(*id)]) return *id;
  const bool backward = part_ == Part::backward_weight || part_ == Part::backward_input;
  throw InputError(place,
                   fmt::format("\"{}\" cannot be read here: {}", name,
                               backward ? "it is not kept for this part" : "this part does not have it"));
}

std::optional<ValueId> value_named(const Graph& graph, const std::string& name, std::size_t count) {
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
      return letters == 2 ? within(Graph::input(0), graph.gradient(0)) : std::nullopt;
    case 'g':
      return within(graph.gradient(0), graph.parameter(0));
    case 'p':
      return within(graph.parameter(0), graph.buffer(0));
    case 'u':
      return within(graph.buffer(0), graph.constant(0));
    case 'c':
      return within(graph.constant(0), graph.field(0));
    case 'f':
      return within(graph.field(0), graph.result(0));
    case '%':
      return within(graph.result(0), static_cast<ValueId>(count));
    default:
      return std::nullopt;
  }
}

ValueId GraphValues::add(const std::string& text, const InputPlace& place) {
  const std::string next = fmt::format("%{} ", all_->size() - static_cast<std::size_t>(graph_.result(0)));
  if (!text.starts_with(next)) {
    throw InputError(place, fmt::format("expected \"{}TYPE\": results are numbered in their order; found {}",
                                        next, json::brief(text)));
  }
  all_->push_back({parse_value_type(std::string_view(text).substr(next.size()), place)});
  readable_.push_back(true);
  return static_cast<ValueId>(all_->size() - 1);
}

void GraphValues::require_type(ValueId id, const ValueType& type, const InputPlace& place) const {
  const ValueType& found = (*this)[id].type;
  if (found == type) return;
  throw InputError(place, fmt::format("expected a value of type {}, this is {}", type.text(), found.text()));
}

}  // namespace stagecraft::captured
