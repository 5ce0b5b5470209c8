#include "engine/transport/request_check.h"

#include "base/error.h"
#include "engine/transport/wait_error.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <exception>

namespace stagecraft::transport {

void check_transfer(const Transport& transport, bool send, const Tag& tag, Rank peer,
                    const at::Tensor& tensor) {
  const Rank rank = transport.rank();
  STAGECRAFT_CHECK(
      peer.valid() && peer.value < transport.world() && peer != rank,
      fmt::format("{} on rank {} of {}", name_transfer(send, tag, peer), rank.value, transport.world()));
  const bool any_memory = transport.takes_device_memory();
  STAGECRAFT_CHECK(tensor.defined() && tensor.is_contiguous() && (any_memory || tensor.is_cpu()),
                   fmt::format("rank {}: {} needs a contiguous tensor{}", rank.value,
                               name_transfer(send, tag, peer), any_memory ? "" : " in the CPU's memory"));
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
