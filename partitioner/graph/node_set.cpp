#include "partitioner/graph/node_set.h"

namespace stagecraft {

NodeSet& NodeSet::operator|=(const NodeSet& other) {
  for (std::size_t w = 0; w < words_.size(); ++w) words_[w] |= other.words_[w];
  return *this;
}

NodeSet& NodeSet::operator-=(const NodeSet& other) {
  for (std::size_t w = 0; w < words_.size(); ++w) words_[w] &= ~other.words_[w];
  return *this;
}

std::vector<int> NodeSet::nodes() const {
  std::vector<int> all;
  for (std::size_t w = 0; w < words_.size(); ++w) {
    for (std::uint64_t rest = words_[w]; rest != 0; rest &= rest - 1) {
      all.push_back(static_cast<int>(w * 64) + std::countr_zero(rest));
    }
  }
  return all;
}

std::size_t NodeSet::hash() const {
  std::uint64_t state = 14695981039346656037ULL;  // FNV-1a over words
  for (const std::uint64_t word : words_) {
    state ^= word;
    state *= 1099511628211ULL;
    state ^= state >> 29U;
  }
  return to_size(state);
}

}  // namespace stagecraft
