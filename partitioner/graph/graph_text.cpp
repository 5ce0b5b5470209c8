#include "partitioner/graph/graph_text.h"

#include "base/error.h"
#include "base/files.h"
#include "base/nearest.h"
#include "base/utf8.h"
#include "schedules/costs/costs.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <set>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace stagecraft {
namespace {

constexpr std::string_view kBetween = " -- ";
constexpr std::array<std::string_view, 4> kKeys{"forward_compute_time", "backward_compute_time",
                                                "activation_size", "parameter_size"};
constexpr std::size_t kMostOutputs = 1000;

/// At most one part more than the `most` that are understood: a long line should not take many times its
/// size.
std::vector<std::string_view> split(std::string_view text, std::string_view by, std::size_t most) {
  std::vector<std::string_view> parts;
  for (;;) {
    const std::size_t at = text.find(by);
    parts.push_back(text.substr(0, at));
    if (at == std::string_view::npos || parts.size() > most) return parts;
    text.remove_prefix(at + by.size());
  }
}

/// As shown in messages.
std::string shortened(std::string_view text) {
  constexpr std::size_t kMost = 60;
  return fmt::format("\"{}{}\"", beginning_of(text, kMost), text.size() > kMost ? "..." : "");
}

class GraphReader {
 public:
  GraphReader(const std::string& text, const std::string& file) : text_(text), file_(file) {}

  LayerGraph read() {
    if (text_.size() > kMostGraphBytes) {
      throw InputError({file_, ""},
                       fmt::format("{} bytes; at most {} are read", text_.size(), kMostGraphBytes));
    }
    each_line([this](std::string_view line) {
      if (line.front() != '\t') node(line);
    });
    if (graph_.nodes.empty()) {
      throw InputError({file_, ""},
                       "no nodes; expected lines like \"node1 -- Linear(8, 8) -- forward_compute_time=1.0, "
                       "backward_compute_time=2.0, activation_size=32.0, parameter_size=256.0\"");
    }
    // An edge may stand before its nodes, so edges are read once all nodes are known.
    each_line([this](std::string_view line) {
      if (line.front() == '\t') edge(line.substr(1));
    });
    refuse_cycles();
    return std::move(graph_);
  }

 private:
  /// Calls `use` with each line that is not blank, and keeps line_ at its number.
  template <class Use>
  void each_line(const Use& use) {
    line_ = 0;
    for (std::size_t begin = 0; begin < text_.size();) {
      const std::size_t end = std::min(text_.find('\n', begin), text_.size());
      std::string_view line = std::string_view(text_).substr(begin, end - begin);
      begin = end + 1;
      ++line_;
      if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
      if (line.find_first_not_of(" \t") != std::string_view::npos) use(line);
    }
  }

  [[noreturn]] void wrong(const std::string& what) const {
    throw InputError({file_, fmt::format("line {}", line_)}, what);
  }

  void node(std::string_view line) {
    if (line.front() == ' ') {
      wrong(fmt::format("begins with a space: an edge begins with a tab, a node with its id; found {}",
                        shortened(line)));
    }
    const std::vector<std::string_view> parts = split(line, kBetween, 4);
    if (parts.size() != 3 && parts.size() != 4) {
      wrong(
          fmt::format("expected \"ID -- DESCRIPTION -- {}=MS, {}=MS, {}=BYTES, {}=BYTES\" or, after a tab, "
                      "\"ID -- ID\"; found {}",
                      kKeys[0], kKeys[1], kKeys[2], kKeys[3], shortened(line)));
    }
    if (parts[0].empty()) wrong("the node has no id before its first \" -- \"");
    if (graph_.nodes.size() == kMostGraphNodes) wrong(fmt::format("more than {} nodes", kMostGraphNodes));
    if (parts.size() == 4 && !parts[3].starts_with("stage_id=")) {
      wrong(fmt::format("expected \"stage_id=\" or nothing after the sizes, found {}", shortened(parts[3])));
    }
    const std::vector<std::string_view> fields = split(parts[2], ", ", kKeys.size());
    if (fields.size() != kKeys.size()) {
      wrong(fmt::format("expected four values, {}, found {}", fmt::join(kKeys, ", "), shortened(parts[2])));
    }
    LayerNode node;
    node.id = parts[0];
    node.description = parts[1];
    node.forward = Seconds{number(value(fields, 0), kKeys[0], kMostMilliseconds) / 1e3};
    node.backward = Seconds{number(value(fields, 1), kKeys[1], kMostMilliseconds) / 1e3};
    node.activation = bytes(fields, 2);
    node.parameters = bytes(fields, 3);
    const auto [entry, fresh] = places_.emplace(parts[0], std::pair{graph_.nodes.size(), line_});
    if (!fresh) {
      wrong(fmt::format("the id {} stands in line {} already", shortened(parts[0]), entry->second.second));
    }
    graph_.nodes.push_back(std::move(node));
  }

  [[nodiscard]] std::string_view value(const std::vector<std::string_view>& fields, std::size_t which) const {
    const std::string_view field = fields[which];
    const std::string_view key = kKeys[which];
    if (!field.starts_with(key) || field.size() == key.size() || field[key.size()] != '=') {
      wrong(fmt::format("expected \"{}=\", found {}", key, shortened(field)));
    }
    return field.substr(key.size() + 1);
  }

  [[nodiscard]] double number(std::string_view text, std::string_view key, double most) const {
    double result = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), result);
    const bool malformed = error != std::errc() || end != text.data() + text.size();
    if (malformed || !(result >= 0 && result <= most)) {
      wrong(fmt::format("{}: expected a number between 0 and {:g}, found {}", key, most, shortened(text)));
    }
    return result;
  }

  [[nodiscard]] Bytes bytes(const std::vector<std::string_view>& fields, std::size_t which) const {
    std::string_view text = value(fields, which);
    if (text.starts_with('[') && text.ends_with(']')) text = text.substr(1, text.size() - 2);
    const std::vector<std::string_view> sizes = split(text, "; ", kMostOutputs);
    if (sizes.size() > kMostOutputs) wrong(fmt::format("{}: more than {} sizes", kKeys[which], kMostOutputs));
    double sum = 0;
    for (const std::string_view size : sizes) sum += number(size, kKeys[which], kMostNodeBytes);
    if (sum > kMostNodeBytes) {
      wrong(fmt::format("{}: the sizes add up to {:g}; at most {:g} are understood", kKeys[which], sum,
                        kMostNodeBytes));
    }
    return Bytes{std::llround(sum)};
  }

  void edge(std::string_view text) {
    const std::vector<std::string_view> ends = split(text, kBetween, 2);
    if (ends.size() != 2)
      wrong(fmt::format("expected \"ID -- ID\" after the tab, found {}", shortened(text)));
    if (graph_.edges.size() == kMostGraphEdges) wrong(fmt::format("more than {} edges", kMostGraphEdges));
    const LayerEdge edge{place(ends[0]), place(ends[1])};
    if (!seen_.insert({edge.from, edge.to}).second) {
      wrong(fmt::format("the edge {} stands twice", shortened(text)));
    }
    graph_.edges.push_back(edge);
    lines_.push_back(line_);
  }

  [[nodiscard]] int place(std::string_view id) const {
    const auto found = places_.find(std::string(id));
    if (found != places_.end()) return static_cast<int>(found->second.first);
    constexpr std::size_t kFewNodes = 1000;  // a hint is not worth more
    std::vector<std::string> ids;
    for (std::size_t n = 0; n < std::min(kFewNodes, graph_.nodes.size()); ++n) {
      ids.push_back(graph_.nodes[n].id);
    }
    wrong(fmt::format("there is no node {}{}", shortened(id), did_you_mean(id.substr(0, kFewNodes), ids)));
  }

  void refuse_cycles() {
    const std::vector<int> order = topological_order(graph_);
    if (order.size() == graph_.nodes.size()) return;
    std::vector<bool> sorted(graph_.nodes.size());
    for (const int node : order) sorted[to_size(node)] = true;
    // Whatever could not be sorted has a predecessor of that kind: going back along those ends in a cycle.
    std::vector<std::optional<std::size_t>> back(graph_.nodes.size());
    for (std::size_t e = 0; e < graph_.edges.size(); ++e) {
      const auto to = to_size(graph_.edges[e].to);
      if (!sorted[to_size(graph_.edges[e].from)] && !sorted[to]) back[to] = e;
    }
    std::vector<std::size_t> path;  // nodes, backwards
    std::vector<bool> seen(graph_.nodes.size());
    auto at = to_size(std::find(sorted.begin(), sorted.end(), false) - sorted.begin());
    while (!seen[at]) {
      seen[at] = true;
      path.push_back(at);
      at = to_size(graph_.edges[*back[at]].from);
    }
    path.erase(path.begin(), std::find(path.begin(), path.end(), at));
    line_ = lines_[*back[at]];
    constexpr std::size_t kShown = 8;
    std::string text = graph_.nodes[at].id;
    for (std::size_t n = path.size(); n-- > 0;) {
      if (path.size() > kShown && n == path.size() - kShown) {
        text += fmt::format(" -> ... ({} more)", n);
        n = 0;
      }
      text += " -> " + graph_.nodes[path[n]].id;
    }
    wrong(fmt::format("the edges go in a circle: {}", text));
  }

  const std::string& text_;
  const std::string& file_;
  int line_ = 0;
  LayerGraph graph_;
  std::unordered_map<std::string, std::pair<std::size_t, int>> places_;  // by id: where, and its line
  std::vector<int> lines_;                                               // of the edges
  std::set<std::pair<int, int>> seen_;
};

}  // namespace

LayerGraph graph_from_text(const std::string& text, const std::string& file) {
  return GraphReader(text, file).read();
}

LayerGraph read_graph(const std::string& path) {
  return graph_from_text(read_file(path, kMostGraphBytes), path);
}

}  // namespace stagecraft
