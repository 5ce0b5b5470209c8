#pragma once

// Which send goes to which receive, on the sender's side: in the order they were begun, for each peer and tag.

#include "schedules/program/action.h"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <unordered_map>

namespace stagecraft::transport {

/// What a receive's rank tells of it.
struct Opening {
  std::uint32_t place = 0;
  std::int64_t bytes = 0;
};

template <class Send>
class Matching {
 public:
  struct Key {
    Rank peer;
    bool texts = false;
    Tag tag;
    bool operator==(const Key&) const = default;
  };

  /// The opening for a send that begins, or nothing: it waits for one.
  [[nodiscard]] std::optional<Opening> begin(const Key& key, const Send& send) {
    return meet(openings_, sends_, key, send);
  }
  /// The send that waited for this opening, or nothing.
  [[nodiscard]] std::optional<Send> open(const Key& key, const Opening& opening) {
    return meet(sends_, openings_, key, opening);
  }

 private:
  struct Hash {
    std::size_t operator()(const Key& key) const noexcept {
      const auto who = static_cast<std::size_t>(key.peer.value) * 2 + (key.texts ? 1 : 0);
      return std::hash<Tag>{}(key.tag) ^ (who * 0x9E3779B97F4A7C15ULL);
    }
  };
  template <class T>
  using Waiting = std::unordered_map<Key, std::deque<T>, Hash>;

  template <class Other, class Mine>
  static std::optional<Other> meet(Waiting<Other>& others, Waiting<Mine>& mine, const Key& key,
                                   const Mine& one) {
    const auto found = others.find(key);
    if (found == others.end()) {
      mine[key].push_back(one);
      return std::nullopt;
    }
    std::optional<Other> other(std::move(found->second.front()));
    found->second.pop_front();
    if (found->second.empty()) others.erase(found);  // segments bring ever new tags: the table must not grow
    return other;
  }

  Waiting<Send> sends_;
  Waiting<Opening> openings_;
};

}  // namespace stagecraft::transport
