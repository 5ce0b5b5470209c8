#include "stagecraft/partitioner/graph/downsets.h"

#include "stagecraft/base/error.h"
#include "stagecraft/partitioner/graph/node_set.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

namespace stagecraft {

NodeSums& NodeSums::operator+=(const NodeSums& other) {
  forward += other.forward;
  backward_input += other.backward_input;
  backward_weight += other.backward_weight;
  parameters += other.parameters;
  return *this;
}

NodeSums& NodeSums::operator-=(const NodeSums& other) {
  forward -= other.forward;
  backward_input -= other.backward_input;
  backward_weight -= other.backward_weight;
  parameters -= other.parameters;
  return *this;
}

/// By size: all downsets of n blocks are known before the first of n + 1 is, so sets are kept of two sizes.
class DownsetWalk {
 public:
  DownsetWalk(const LayerGraph& graph, const Blocks& blocks, const DownsetLimits& limits)
      : limits_(limits),
        block_of_(graph.nodes.size()),
        outputs_(blocks.size()),
        reads_(blocks.size()),
        successors_(blocks.size()),
        predecessors_(blocks.size()) {
    found_.blocks_ = blocks;
    for (std::size_t b = 0; b < blocks.size(); ++b) {
      NodeSums& sums = found_.block_sums_.emplace_back();
      for (const int n : blocks[b]) {
        const LayerNode& node = graph.nodes[to_size(n)];
        const double weight = node.backward_weight().value;
        sums += {node.forward.value, node.backward.value - weight, weight,
                 static_cast<double>(node.parameters.value)};
        block_of_[to_size(n)] = static_cast<int>(b);
      }
    }
    std::vector<std::vector<int>> readers(graph.nodes.size());  // blocks that read a node, other than its own
    for (const LayerEdge& edge : graph.edges) {
      const int from = block_of(edge.from);
      const int to = block_of(edge.to);
      if (from == to) continue;
      readers[to_size(edge.from)].push_back(to);
      successors_[to_size(from)].push_back(to);
      predecessors_[to_size(to)].push_back(from);
    }
    for (auto* lists : {&readers, &successors_, &predecessors_}) {
      for (std::vector<int>& list : *lists) {
        std::ranges::sort(list);
        list.erase(std::unique(list.begin(), list.end()), list.end());
      }
    }
    for (std::size_t n = 0; n < readers.size(); ++n) {
      if (readers[n].empty()) continue;
      const auto bytes = static_cast<double>(graph.nodes[n].activation.value);
      outputs_[to_size(block_of_[n])] += bytes;
      const auto output = static_cast<int>(read_.size());
      for (const int reader : readers[n]) reads_[to_size(reader)].push_back(output);
      read_.push_back({bytes, std::move(readers[n])});
    }
  }

  std::optional<Downsets> walk() {
    std::vector<Front> here(1);
    here[0].set = NodeSet(outputs_.size());
    for (std::size_t b = 0; b < predecessors_.size(); ++b) {
      if (predecessors_[b].empty()) here[0].ready.push_back(static_cast<int>(b));
    }
    add({}, 0, -1, -1);
    std::vector<Front> next;
    for (int first = 0; !here.empty(); first = found_.size() - static_cast<int>(here.size())) {
      next.clear();
      std::unordered_map<NodeSet, int> places;
      for (std::size_t h = 0; h < here.size(); ++h) {
        found_.first_step_.push_back(found_.steps_.size());
        const int from = first + static_cast<int>(h);
        if (too_wide(here[h].ready.size())) return std::nullopt;
        for (const int block : here[h].ready) {
          NodeSet set = here[h].set;
          set.insert(block);
          const auto [place, fresh] = places.try_emplace(set, found_.size());
          found_.steps_.push_back({block, place->second});
          if (found_.steps_.size() > limits_.steps) return std::nullopt;
          if (!fresh) continue;
          if (to_size(found_.size()) == limits_.downsets) return std::nullopt;
          NodeSums sums = found_.sums(from);
          sums += found_.of_block(block);
          add(sums, found_.crossing(from) + change(block, set), from, block);
          next.push_back({std::move(set), {}});
          next.back().ready = ready_behind(here[h].ready, block, next.back().set);
        }
      }
      here.swap(next);
    }
    found_.first_step_.push_back(found_.steps_.size());
    STAGECRAFT_CHECK(found_.nodes(found_.all()).size() == block_of_.size(), "the blocks go in a circle");
    return std::move(found_);
  }

 private:
  struct Front {
    NodeSet set;
    std::vector<int> ready;  // blocks all of whose predecessors are in the set
  };
  struct Output {
    double bytes;
    std::vector<int> readers;
  };

  [[nodiscard]] static bool contains_all(const NodeSet& set, const std::vector<int>& blocks) {
    return std::ranges::all_of(blocks, [&](int block) { return set.contains(block); });
  }
  [[nodiscard]] int block_of(int node) const { return block_of_[to_size(node)]; }

  /// With any of those that are ready it is another downset: there are two to their power at least.
  [[nodiscard]] bool too_wide(std::size_t ready) const {
    return ready >= 64 || (std::size_t{1} << ready) > limits_.downsets;
  }
  void add(const NodeSums& sums, double crossing, int before, int added) {
    found_.sums_.push_back(sums);
    found_.crossing_.push_back(crossing);
    found_.before_.push_back(before);
    found_.added_.push_back(added);
  }
  /// Of what crosses: the block's own outputs come, those that it is the last to read go.
  [[nodiscard]] double change(int block, const NodeSet& set) const {
    double bytes = outputs_[to_size(block)];
    for (const int output : reads_[to_size(block)]) {
      const Output& read = read_[to_size(output)];
      if (contains_all(set, read.readers)) bytes -= read.bytes;
    }
    return bytes;
  }
  [[nodiscard]] std::vector<int> ready_behind(const std::vector<int>& ready, int block,
                                              const NodeSet& set) const {
    std::vector<int> behind = ready;
    std::erase(behind, block);
    for (const int reader : successors_[to_size(block)]) {
      if (contains_all(set, predecessors_[to_size(reader)])) behind.push_back(reader);
    }
    return behind;
  }

  const DownsetLimits& limits_;
  std::vector<int> block_of_;
  std::vector<double> outputs_;  // of a block, read by others: bytes
  std::vector<std::vector<int>> reads_;
  std::vector<Output> read_;
  std::vector<std::vector<int>> successors_, predecessors_;
  Downsets found_;
};

std::optional<Downsets> Downsets::of(const LayerGraph& graph, const Blocks& blocks,
                                     const DownsetLimits& limits) {
  return DownsetWalk(graph, blocks, limits).walk();
}

std::vector<int> Downsets::nodes(int downset) const {
  std::vector<int> nodes;
  for (int at = downset; before_[to_size(at)] >= 0; at = before_[to_size(at)]) {
    const std::vector<int>& block = blocks_[to_size(added_[to_size(at)])];
    nodes.insert(nodes.end(), block.begin(), block.end());
  }
  return nodes;
}

Blocks single_nodes(const std::vector<int>& nodes) {
  Blocks blocks;
  for (const int node : nodes) blocks.push_back({node});
  return blocks;
}

}  // namespace stagecraft
