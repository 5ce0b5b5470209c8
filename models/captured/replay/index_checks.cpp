#include "models/captured/replay/index_checks.h"

#include "models/captured/replay/replay.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <string_view>
#include <utility>

namespace stagecraft::captured {
namespace {

/// What a value follows from: an input or a field by its ValueId, or one of these.
constexpr ValueId kFromConstants = -1, kFromMore = -2;

/// An argument that holds indices, and what they are indices of.
struct Lookup {
  ValueId indices = kNoValue;
  ValueId table = kNoValue;
  std::size_t dimension = 0;  ///< of the table
  bool from_the_end = false;  ///< -1 is the last
  std::optional<std::int64_t> ignored{};
};

class Finder {
 public:
  explicit Finder(const Graph& graph) : graph_(graph), follows_(graph.values.size(), kFromMore) {
    for (std::size_t i = 0; i < graph.inputs.size(); ++i) {
      if (!c10::isFloatingType(graph.inputs[i].dtype)) follows(Graph::input(i)) = Graph::input(i);
    }
    for (std::size_t i = 0; i < graph.fields.size(); ++i) follows(graph.field(i)) = graph.field(i);
    for (std::size_t i = 0; i < graph.constants.size(); ++i) follows(graph.constant(i)) = kFromConstants;
    for (const Step& step : graph.forward) {
      const ValueId from = followed(step);
      for (const ValueId result : step.results) {
        if (result != kNoValue) follows(result) = from;
      }
    }
  }

  /// kFromConstants and kFromMore where it is no input and no field.
  [[nodiscard]] ValueId source_of(ValueId value) const { return follows_[static_cast<std::size_t>(value)]; }

  [[nodiscard]] std::vector<Lookup> lookups() const {
    std::vector<Lookup> found;
    for (const Step& step : graph_.forward) add_lookups(step, found);
    return found;
  }

  [[nodiscard]] const ValueType& type(ValueId value) const {
    return graph_.values[static_cast<std::size_t>(value)].type;
  }

 private:
  ValueId& follows(ValueId value) { return follows_[static_cast<std::size_t>(value)]; }

  [[nodiscard]] ValueId followed(const Step& step) const {
    if (step.own != Step::Own::none) return kFromMore;
    ValueId from = kFromConstants;
    for (const Argument& argument : step.arguments) {
      for (const ValueId value : argument.values) {
        if (value == kNoValue || source_of(value) == kFromConstants || source_of(value) == from) continue;
        if (from != kFromConstants) return kFromMore;
        from = source_of(value);
      }
    }
    return from;
  }

  [[nodiscard]] static std::int64_t number(const Argument& argument) {
    return argument.constant.isInt() ? argument.constant.toInt() : 0;
  }

  [[nodiscard]] std::size_t dimension(ValueId table, const Argument& argument) const {
    const auto dimensions = static_cast<std::int64_t>(type(table).sizes.size());
    const std::int64_t given = number(argument);
    return static_cast<std::size_t>(given < 0 ? given + dimensions : given);
  }

  void add_lookups(const Step& step, std::vector<Lookup>& found) const {
    const std::vector<Argument>& of = step.arguments;
    const auto value = [&](std::size_t i) { return of[i].values[0]; };
    const std::string_view name = step.name;
    if (name == "aten::embedding") {
      found.push_back({value(1), value(0), 0});
    } else if (name == "aten::index_select" || name == "aten::gather" || name == "aten::index_add" ||
               name == "aten::index_copy" || name == "aten::index_reduce" ||
               name.starts_with("aten::index_fill") || name.starts_with("aten::scatter")) {
      found.push_back({value(2), value(0), dimension(value(0), of[1])});
    } else if (name.starts_with("aten::nll_loss") && name.ends_with("_forward")) {
      found.push_back({value(1), value(0), type(value(0)).sizes.size() == 1 ? 0U : 1U, false, number(of[4])});
    } else if (name == "aten::multi_margin_loss") {
      found.push_back({value(1), value(0), type(value(0)).sizes.size() - 1});
    } else if (name == "aten::index.Tensor" || name == "aten::index_put") {
      for (std::size_t k = 0; k < of[1].values.size(); ++k) {
        const ValueId indices = of[1].values[k];
        if (indices == kNoValue) continue;
        if (type(indices).dtype == at::kBool) return;  // a mask takes the place of several dimensions
        found.push_back({indices, value(0), k, true});
      }
    }
  }

  const Graph& graph_;
  std::vector<ValueId> follows_;
};

/// The graph's steps up to some indices, for every number of samples.
class IndexProgram {
 public:
  IndexProgram(std::shared_ptr<const void> owner, const Graph& graph, ValueId source, ValueId indices,
               std::vector<at::Tensor> constants)
      : owner_(std::move(owner)),
        graph_(graph),
        source_(source),
        indices_(indices),
        constants_(std::move(constants)) {}

  [[nodiscard]] at::Tensor run(const at::Tensor& batch) const {
    const ValueType& type = graph_.values[static_cast<std::size_t>(source_)].type;
    const std::optional<std::int64_t> b = type.samples_of(batch.sizes());
    if (!b) return {};
    at::Tensor given = batch.to(type.dtype);
    if (source_ == indices_) return given;
    std::vector<c10::IValue> frame{std::move(given)};
    frame.insert(frame.end(), constants_.begin(), constants_.end());
    return program(*b).run(std::move(frame), {}).front();
  }

 private:
  [[nodiscard]] const Program& program(std::int64_t b) const {
    const std::scoped_lock lock(mutex_);
    std::unique_ptr<const Program>& made = programs_[b];
    if (made == nullptr) {
      std::vector<ValueId> inputs{source_};
      for (std::size_t i = 0; i < constants_.size(); ++i) inputs.push_back(graph_.constant(i));
      made = std::make_unique<const Program>(Program::Source{fmt::format("graph {}, indices", graph_.hash),
                                                             graph_.forward,
                                                             graph_.values,
                                                             std::move(inputs),
                                                             {indices_}},
                                             b, at::kCPU, MatrixProducts::blas);
    }
    return *made;
  }

  std::shared_ptr<const void> owner_;  ///< of the graph
  const Graph& graph_;
  ValueId source_, indices_;
  std::vector<at::Tensor> constants_;
  mutable std::mutex mutex_;
  mutable std::map<std::int64_t, std::unique_ptr<const Program>> programs_;
};

/// Steps behind which all numbers are there, and no others.
bool keeps_numbers(std::string_view name) {
  constexpr std::string_view kThose[] = {
      "aten::view",          "aten::reshape",     "aten::_unsafe_view", "aten::expand",     "aten::unsqueeze",
      "aten::squeeze",       "aten::squeeze.dim", "aten::squeeze.dims", "aten::t",          "aten::permute",
      "aten::transpose.int", "aten::detach",      "aten::alias",        "aten::contiguous", "aten::_to_copy",
      "aten::clone",         "aten::repeat"};
  return std::ranges::find(kThose, name) != std::end(kThose);
}

bool is_direct(const Graph& graph, ValueId source, ValueId indices) {
  if (source == indices) return true;
  const std::vector<const Step*> steps = wanted_steps(graph.forward, {indices});
  return std::ranges::all_of(steps, [](const Step* step) { return keeps_numbers(step->name); });
}

std::string reader_of(const Graph& graph, const Lookup& lookup, std::int64_t entries,
                      const GraphNames& names) {
  if (lookup.ignored) return fmt::format("a loss over {} classes", entries);
  for (std::size_t i = 0; i < graph.parameters.size(); ++i) {
    if (lookup.table == graph.parameter(i))
      return fmt::format("an embedding of {} rows ({})", entries, names.parameters[i]);
  }
  return fmt::format("a table of {} entries", entries);
}

}  // namespace

std::vector<NumberCheck> index_checks(const std::shared_ptr<const void>& owner, const Graph& graph,
                                      const GraphNames& names) {
  const Finder finder(graph);
  std::vector<NumberCheck> checks;
  for (const Lookup& lookup : finder.lookups()) {
    const ValueId source = finder.source_of(lookup.indices);
    const std::vector<AffineSize>& table = finder.type(lookup.table).sizes;
    if (source < 0 || lookup.dimension >= table.size() || table[lookup.dimension].depends_on_b()) continue;
    const std::int64_t entries = table[lookup.dimension].plus;
    NumberCheck check;
    check.end = entries;
    check.least = lookup.from_the_end ? -entries : 0;
    check.ignored = lookup.ignored;
    check.reader = reader_of(graph, lookup, entries, names);
    check.direct = is_direct(graph, source, lookup.indices);
    if (source < graph.gradient(0)) {
      check.place = static_cast<std::size_t>(source);
    } else {
      check.field = names.fields[static_cast<std::size_t>(source - graph.field(0))];
    }
    check.numbers = [program = std::make_shared<const IndexProgram>(
                         owner, graph, source, lookup.indices, names.constants)](const at::Tensor& batch) {
      return program->run(batch);
    };
    checks.push_back(std::move(check));
  }
  return checks;
}

std::vector<bool> tables_among_parameters(const Graph& graph) {
  std::vector<bool> tables(graph.parameters.size());
  for (const Lookup& lookup : Finder(graph).lookups()) {
    for (std::size_t i = 0; i < tables.size(); ++i) {
      if (lookup.table == graph.parameter(i)) tables[i] = true;
    }
  }
  return tables;
}

}  // namespace stagecraft::captured
