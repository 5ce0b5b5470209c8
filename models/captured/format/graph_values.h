#pragma once

// The values of a graph while its file is read: by their names, with what the part that is read may read.

#include "base/describe.h"
#include "base/error.h"
#include "models/captured/format/graph.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace stagecraft::captured {

enum class Part : std::uint8_t { forward, backward_input, backward_weight, evaluate };

}  // namespace stagecraft::captured

namespace stagecraft {

template <>
inline constexpr std::array enum_names<captured::Part>{"forward", "backward_input", "backward_weight",
                                                       "evaluate"};

}  // namespace stagecraft

namespace stagecraft::captured {

/// The value of that name, of `count`; none where there is no such one.
[[nodiscard]] std::optional<ValueId> value_named(const Graph& graph, const std::string& name,
                                                 std::size_t count);

class GraphValues {
 public:
  /// `graph` has the types of its tensors, gets values as they are made, and outlives this object.
  GraphValues(Graph& graph, std::string file) : graph_(graph), file_(std::move(file)) {}

  /// Begins a part, which may read what every part of its kind may. Training's parts share their values;
  /// evaluation numbers its own from the start.
  void begin(Part part);
  /// Lets the part read the values from `first` up to `end`, or one.
  void let_read(ValueId first, ValueId end);
  void let_read(ValueId id) { let_read(id, id + 1); }

  [[nodiscard]] Part part() const { return part_; }
  [[nodiscard]] const Value& operator[](ValueId id) const { return (*all_)[static_cast<std::size_t>(id)]; }
  [[nodiscard]] Value& operator[](ValueId id) { return (*all_)[static_cast<std::size_t>(id)]; }

  /// Throws InputError unless `name` is a value that the part can read by now.
  [[nodiscard]] ValueId found(const std::string& name, const InputPlace& place) const;
  /// Adds the next result: "%3 f32[b,8]", 3 being the next number. Throws InputError for another number.
  ValueId add(const std::string& text, const InputPlace& place);
  void require_type(ValueId id, const ValueType& type, const InputPlace& place) const;

  [[nodiscard]] const std::string& file() const { return file_; }
  /// Where something stands in it: "forward/steps".
  [[nodiscard]] InputPlace at(const std::string& pointer) const { return {file_, "/" + pointer}; }

 private:
  [[nodiscard]] std::vector<Value> given() const;

  Graph& graph_;
  std::string file_;
  Part part_ = Part::forward;
  std::vector<Value>* all_ = nullptr;
  std::vector<bool> readable_;  ///< by ValueId
};

}  // namespace stagecraft::captured
