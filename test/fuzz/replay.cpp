// Runs a fuzz target without libFuzzer, so that every build and every sanitizer tries it: on each seed, and on
// changes of it that are the same each time.
//   replay TARGET CHANGES FOLDER
// libFuzzer's search (scripts/fuzz.sh) finds more and takes clang and time.

#include "test/fuzz/target.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <vector>

namespace stagecraft::fuzz {

std::map<std::string, Target>& targets() {
  static std::map<std::string, Target> known;
  return known;
}

}  // namespace stagecraft::fuzz

namespace {

constexpr std::size_t kLargest = 1U << 16U;
std::minstd_rand draw;

std::size_t below(std::size_t end) { return end == 0 ? 0 : draw() % end; }

std::vector<std::uint8_t> bytes_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

/// One small change of bytes, in place.
extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t max_size) {
  const std::size_t at = below(size);
  switch (size == 0 ? 3 : draw() % 4) {
    case 0:
      data[at] ^= static_cast<std::uint8_t>(1U << draw() % 8);
      return size;
    case 1:
      return at;
    case 2: {
      const std::size_t gone = 1 + below(std::min<std::size_t>(size - at, 16));
      std::copy(data + at + gone, data + size, data + at);
      return size - gone;
    }
    default:
      if (size == max_size) return size;
      std::copy_backward(data + at, data + size, data + size + 1);
      data[at] = static_cast<std::uint8_t>(draw());
      return size + 1;
  }
}

int main(int argc, char** argv) {
  using namespace stagecraft::fuzz;
  const auto found = argc == 4 ? targets().find(argv[1]) : targets().end();
  if (found == targets().end()) return 2;
  const Target& target = found->second;
  const int changes = std::atoi(argv[2]);
  std::vector<std::filesystem::path> seeds{std::filesystem::directory_iterator(argv[3]), {}};
  std::sort(seeds.begin(), seeds.end());
  if (seeds.empty() || changes <= 0) return 2;
  const auto run = [&](const std::vector<std::uint8_t>& input) {
    if (target.run(input.data(), input.size()) != 0) std::abort();  // libFuzzer knows no other value yet
  };
  for (const auto& path : seeds) run(bytes_of(path));
  const std::size_t good = accepted_inputs;
  for (const auto& path : seeds) {
    const std::vector<std::uint8_t> seed = bytes_of(path);
    draw.seed(1);
    std::vector<std::uint8_t> changed(std::max(kLargest, seed.size()));
    std::size_t size = 0;
    for (int i = 0; i < changes; ++i) {
      // Every fourth begins at the seed again; the others change what was changed.
      if (i % 4 == 0)
        size =
            static_cast<std::size_t>(std::copy(seed.begin(), seed.end(), changed.begin()) - changed.begin());
      size = target.mutate != nullptr
                 ? target.mutate(changed.data(), size, changed.size(), static_cast<unsigned>(draw()))
                 : LLVMFuzzerMutate(changed.data(), size, changed.size());
      // A copy of its own, so that a sanitizer sees a read beyond it.
      run({changed.begin(), changed.begin() + static_cast<std::ptrdiff_t>(size)});
    }
  }
  std::printf("%zu seeds, of which the reader takes %zu, and %d changes of each, of which it takes %zu\n",
              seeds.size(), good, changes, accepted_inputs - good);
  if (good == 0) std::printf("the format has changed: make a seed that is read\n");
  return good == 0 ? 1 : 0;
}
