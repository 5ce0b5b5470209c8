#pragma once

// Sets of a graph's nodes, as bits.

#include "base/ids.h"

#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace stagecraft {

/// Sets that meet in an operation are of the same graph size.
class NodeSet {
 public:
  NodeSet() = default;
  explicit NodeSet(std::size_t nodes) : words_((nodes + 63) / 64) {}

  void insert(int node) { words_[word(node)] |= bit(node); }
  [[nodiscard]] bool contains(int node) const { return (words_[word(node)] & bit(node)) != 0; }
  NodeSet& operator|=(const NodeSet& other);
  NodeSet& operator-=(const NodeSet& other);
  /// All of the other, or more.
  [[nodiscard]] bool includes(const NodeSet& other) const {
    for (std::size_t w = 0; w < words_.size(); ++w) {
      if ((other.words_[w] & ~words_[w]) != 0) return false;
    }
    return true;
  }
  [[nodiscard]] int count() const {
    int sum = 0;
    for (const std::uint64_t word : words_) sum += std::popcount(word);
    return sum;
  }
  [[nodiscard]] std::vector<int> nodes() const;  ///< ascending
  [[nodiscard]] std::size_t hash() const;
  bool operator==(const NodeSet&) const = default;

 private:
  static std::size_t word(int node) { return to_size(node) / 64; }
  static std::uint64_t bit(int node) { return std::uint64_t{1} << (to_size(node) % 64); }

  std::vector<std::uint64_t> words_;
};

}  // namespace stagecraft

template <>
struct std::hash<stagecraft::NodeSet> {
  std::size_t operator()(const stagecraft::NodeSet& set) const noexcept { return set.hash(); }
};
