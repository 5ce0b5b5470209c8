#include "engine/transport/request_check.h"

#include "engine/transport/wait_error.h"
#include "schedules/base/error.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <exception>

namespace stagecraft::transport {

void check_transfer(Rank rank, int world, bool send, const Tag& tag, Rank peer, const at::Tensor& tensor) {
  STAGECRAFT_CHECK(peer.valid() && peer.value < world && peer != rank,
                   fmt::format("{} on rank {} of {}", name_transfer(send, tag, peer), rank.value, world));
  STAGECRAFT_CHECK(tensor.defined() && tensor.is_contiguous() && tensor.is_cpu(),
                   fmt::format("rank {}: {} needs a contiguous tensor in the CPU's memory", rank.value,
                               name_transfer(send, tag, peer)));
}

void report_unfinished(Rank rank, bool send, const Tag& tag, Rank peer) noexcept {
  if (std::uncaught_exceptions() > 0) return;
  try {
    spdlog::critical("rank {}: {} was given up before it was complete: a defect of Stagecraft", rank.value,
                     name_transfer(send, tag, peer));
  } catch (...) {
    // Nothing left to say it with.
  }
}

}  // namespace stagecraft::transport
