// Batches of a token file through the loader of a run, whose thread reads ahead, with nothing between them.
//   bench_token_loading FILE SEQUENCE BATCH
// Each line of standard input is a number of batches to read; the answer is the wall seconds they took and the
// processor seconds of both threads. So a script can have it take turns with another loader.

#include "models/data/loader.h"
#include "models/data/tokens.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <ctime>
#include <exception>
#include <iostream>
#include <string>

namespace {

using namespace stagecraft;  // NOLINT: a program of its own

constexpr std::int64_t kVocabulary = 1 << 16;  // any token of 16 bits

double processor_seconds() {
  std::timespec now{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Batches of one epoch after another, without an end.
class Batches {
 public:
  Batches(const Dataset& data, std::int64_t batch)
      : samples_(data.size(Split::train)), batch_(batch), loader_(data, {.batch = batch}) {}

  /// Whether all of them were whole.
  bool read(std::int64_t count) {
    std::vector<MicroBatchRange> ranges;
    for (std::int64_t i = 0; i < count; ++i) {
      if (first_ + batch_ > samples_) {
        first_ = 0;
        ++epoch_;
      }
      ranges.push_back({epoch_, first_, batch_});
      first_ += batch_;
    }
    loader_.announce(ranges);
    bool whole = true;
    for (const MicroBatchRange& range : ranges) {
      const Batch batch = loader_.take(range);
      whole = whole && batch.inputs.size(0) == batch_ && batch.targets.sizes() == batch.inputs.sizes();
    }
    return whole;
  }

 private:
  std::int64_t samples_, batch_, epoch_ = 0, first_ = 0;
  Loader loader_;
};

int answer(const std::string& path, std::int64_t sequence, std::int64_t batch) {
  const auto data =
      open_tokens({.path = path, .sequence = sequence, .vocabulary = kVocabulary}, {"the command line", ""});
  if (batch < 1 || data->size(Split::train) < batch) {
    fmt::print(stderr, "{} has {} samples, a batch takes {}\n", path, data->size(Split::train), batch);
    return 2;
  }
  Batches batches(*data, batch);
  for (std::int64_t count = 0; std::cin >> count;) {
    const double wall = wall_seconds(), processor = processor_seconds();
    if (!batches.read(count)) return 1;
    fmt::print("{} {}\n", wall_seconds() - wall, processor_seconds() - processor);
    (void)std::fflush(stdout);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  at::set_num_threads(1);
  if (argc != 4) {
    fmt::print(stderr, "usage: bench_token_loading FILE SEQUENCE BATCH\n");
    return 2;
  }
  try {
    return answer(argv[1], std::stoll(argv[2]), std::stoll(argv[3]));
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 2;
  }
}
