#include "models/data/dataset.h"
#include "test/support/catch.h"

#include <rapidcheck.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <set>

namespace stagecraft {
namespace {

std::vector<std::int64_t> order(std::int64_t size, std::uint64_t seed, std::int64_t epoch,
                                bool shuffle = true) {
  const Shuffle index(size, seed, epoch, shuffle);
  std::vector<std::int64_t> result(static_cast<std::size_t>(size));
  for (std::int64_t i = 0; i < size; ++i) result[static_cast<std::size_t>(i)] = index(i);
  return result;
}

bool is_permutation(std::vector<std::int64_t> values) {
  std::sort(values.begin(), values.end());
  for (std::size_t i = 0; i < values.size(); ++i)
    if (values[i] != static_cast<std::int64_t>(i)) return false;
  return true;
}

TEST_CASE("shuffle: a permutation for every small size", "[data]") {
  for (std::int64_t size = 0; size <= 70; ++size)
    for (std::uint64_t seed = 0; seed < 5; ++seed) REQUIRE(is_permutation(order(size, seed, 3)));
}

TEST_CASE("shuffle: a permutation for any size, seed and epoch", "[data]") {
  CHECK(rc::check([] {
    const auto size = *rc::gen::inRange<std::int64_t>(1, 20000);
    const auto seed = *rc::gen::arbitrary<std::uint64_t>();
    const auto epoch = *rc::gen::inRange<std::int64_t>(0, 1000);
    RC_ASSERT(is_permutation(order(size, seed, epoch)));
  }));
}

TEST_CASE("shuffle: follows seed and epoch, and nothing else", "[data]") {
  CHECK(order(1000, 1, 0) == order(1000, 1, 0));
  CHECK(order(1000, 1, 0) != order(1000, 2, 0));
  CHECK(order(1000, 1, 0) != order(1000, 1, 1));
  CHECK(order(1000, 0, 1) != order(1000, 1, 0));
  std::vector<std::int64_t> identity(100);
  std::iota(identity.begin(), identity.end(), 0);
  CHECK(order(100, 1, 0, false) == identity);
}

TEST_CASE("shuffle: the order is pinned, for runs made elsewhere or before", "[data]") {
  CHECK((order(10, 42, 0) == std::vector<std::int64_t>{6, 9, 1, 2, 4, 8, 5, 7, 3, 0}));
}

TEST_CASE("shuffle: every sample is as likely at every position", "[data]") {
  constexpr std::int64_t kSize = 7;  // walks cycles of a domain of 16: the hard case
  constexpr int kEpochs = 20000;
  std::vector<std::vector<int>> counts(kSize, std::vector<int>(kSize, 0));
  for (int epoch = 0; epoch < kEpochs; ++epoch) {
    const Shuffle index(kSize, 9, epoch, true);
    for (std::int64_t i = 0; i < kSize; ++i)
      ++counts[static_cast<std::size_t>(i)][static_cast<std::size_t>(index(i))];
  }
  for (const auto& row : counts) {
    double chi_squared = 0;
    for (const int count : row) {
      const double expected = static_cast<double>(kEpochs) / kSize;
      chi_squared += (count - expected) * (count - expected) / expected;
    }
    CHECK(chi_squared < 27.9);  // six degrees of freedom: exceeded by chance once in 10,000
  }
}

TEST_CASE("shuffle: any number of samples has an order", "[data]") {
  for (const std::int64_t size : {(std::int64_t{1} << 62) + 1, std::int64_t{5'000'000'000'000'000'000},
                                  std::numeric_limits<std::int64_t>::max()}) {
    const Shuffle index(size, 3, 0, true);
    std::set<std::int64_t> seen;
    for (std::int64_t i = 0; i < 1000; ++i) seen.insert(index(i));
    CHECK(seen.size() == 1000);
    CHECK(*seen.begin() >= 0);
    CHECK(*seen.rbegin() < size);
  }
}

TEST_CASE("shuffle: refuses positions outside the epoch", "[data]") {
  const Shuffle index(5, 1, 0, true);
  CHECK_THROWS(index(5));
  CHECK_THROWS(index(-1));
}

}  // namespace
}  // namespace stagecraft
