#pragma once

// What the processes of a c10d group tell each other beside the tensors.

#include "schedules/program/action.h"

#include <cstdint>
#include <string>

namespace stagecraft::transport {

struct Message {
  enum class Kind : std::uint8_t {
    ready,     ///< a receive is posted: `tag`, `texts`, `number` (its place), `bytes`
    data,      ///< all that goes to the place `number`, in `text`
    sent,      ///< all that goes to the place `number` is on its way, ahead of this
    refused,   ///< nothing goes to the place `number`: the send has `bytes`
    brought,   ///< to a collective, rank 0's to collect: `number` of them came before; `what`
    result,    ///< what all brought to it
    agrees,    ///< the same of agreements: `bytes` is the number that was brought
    agreed,    ///< `bytes` is the most
    failed,    ///< the rank failed, `text` is its reason
    left_off,  ///< the same, and it goes to the meeting place
    left       ///< the process needs nobody any more
  };

  Kind kind = Kind::left;
  bool texts = false;          ///< a piece of a text, not a tensor of the engine's
  std::int32_t transport = 0;  ///< of those that a session made
  std::uint32_t number = 0;
  std::int64_t bytes = 0;
  Tag tag{};
  std::string text;
};

[[nodiscard]] std::string to_bytes(const Message& message);
/// Of bytes that to_bytes() made, on a machine of the same kind.
[[nodiscard]] Message message_from(const std::string& bytes);

}  // namespace stagecraft::transport
