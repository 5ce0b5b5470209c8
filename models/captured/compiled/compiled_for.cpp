#include "models/captured/compiled/compiled_for.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace stagecraft {
namespace {

std::string per_rank(int threads) {
  return fmt::format("{} {} per rank", threads, threads == 1 ? "thread" : "threads");
}

}  // namespace

std::string CompiledFor::text() const {
  return fmt::format("micro-batches of {} samples with {}", fmt::join(micro_batches, ", "),
                     per_rank(threads));
}

std::string CompiledFor::why_unused(std::int64_t micro_batch, int threads_per_rank) const {
  if (threads_per_rank != threads) {
    return fmt::format("it is for {}, and this run has {}", per_rank(threads), threads_per_rank);
  }
  if (std::find(micro_batches.begin(), micro_batches.end(), micro_batch) == micro_batches.end()) {
    return fmt::format("it is for micro-batches of {} samples, and this run's have {}",
                       fmt::join(micro_batches, ", "), micro_batch);
  }
  return "";
}

}  // namespace stagecraft
