#include "test/fuzz/json_changes.h"

#include "base/json.h"
#include "test/fuzz/target.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>
#include <limits>
#include <random>
#include <utility>
#include <vector>

namespace stagecraft::fuzz {
namespace {

using Random = std::minstd_rand;

std::size_t below(Random& random, std::size_t end) {
  return std::uniform_int_distribution<std::size_t>(0, end - 1)(random);
}

void collect(Json& value, std::vector<Json*>& all) {
  all.push_back(&value);
  if (!value.is_structured()) return;
  for (Json& child : value) collect(child, all);
}

/// Numbers at which something ends: types, ranges of the readers, precision.
Json edge(Random& random) {
  static const std::vector<Json> edges{0,
                                       1,
                                       2,
                                       3,
                                       -1,
                                       0.5,
                                       1.0,
                                       -0.0,
                                       1e-300,
                                       1e-6,
                                       1e12,
                                       1e300,
                                       std::int64_t{1} << 31U,
                                       (std::int64_t{1} << 31U) - 1,
                                       std::int64_t{1} << 42U,
                                       std::int64_t{1} << 53U,
                                       (std::int64_t{1} << 62U) - 1,
                                       std::numeric_limits<std::int64_t>::max(),
                                       std::numeric_limits<std::int64_t>::min(),
                                       std::numeric_limits<std::uint64_t>::max(),
                                       1'000'000,
                                       true,
                                       false,
                                       nullptr,
                                       "",
                                       "x",
                                       Json::array(),
                                       Json::object()};
  return edges[below(random, edges.size())];
}

void change_number(Json& value, Random& random) {
  if (value.is_number_float()) {
    static constexpr std::array factors{0.0, 0.1, 0.5, 1.1, 2.0, 3.0, 1e3, 1e9, -1.0};
    value = value.get<double>() * factors[below(random, factors.size())];
  } else {
    const auto offset = static_cast<std::uint64_t>(below(random, 9)) - 4;
    value = static_cast<std::int64_t>(static_cast<std::uint64_t>(value.get<std::int64_t>()) + offset);
  }
}

void remove_or_double_child(Json& value, Random& random) {
  if (!value.is_structured() || value.empty()) return;
  const auto at = std::next(value.begin(), static_cast<std::ptrdiff_t>(below(random, value.size())));
  if (value.is_object() || below(random, 2) == 0) {
    value.erase(at);
  } else {
    const Json copy = *at;
    value.insert(at, copy);
  }
}

void change(Json& root, Random& random) {
  std::vector<Json*> all;
  collect(root, all);
  Json& value = *all[below(random, all.size())];
  switch (below(random, 4)) {
    case 0:
      value = edge(random);
      break;
    case 1: {  // what stands elsewhere in the same file
      Json other = *all[below(random, all.size())];
      value = std::move(other);
      break;
    }
    case 2:
      if (value.is_number()) change_number(value, random);
      break;
    default:
      remove_or_double_child(value, random);
  }
}

}  // namespace

std::string change_json(const std::string& text, unsigned seed) {
  Random random(seed);
  Json root;
  try {
    root = json::parse_text(text, "x");
  } catch (const InputError&) {
    return "";
  }
  for (std::size_t changes = 1 + below(random, 3); changes > 0; --changes) change(root, random);
  return root.dump();
}

std::size_t put(const std::string& text, std::uint8_t* data, std::size_t max_size) {
  const std::size_t length = std::min(text.size(), max_size);
  std::memcpy(data, text.data(), length);
  return length;
}

std::size_t mutate_json(std::uint8_t* data, std::size_t size, std::size_t max_size, unsigned seed) {
  if (seed % 2 == 1) {
    const std::string changed = change_json(std::string(data, data + size), seed / 2);
    if (!changed.empty()) return put(changed, data, max_size);
  }
  return LLVMFuzzerMutate(data, size, max_size);
}

}  // namespace stagecraft::fuzz
