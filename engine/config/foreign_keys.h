#pragma once

// Keys that people bring from other trainers' configs (DeepSpeed, Megatron, Hugging Face, Lightning, torchtitan).

#include <string>
#include <string_view>

namespace stagecraft {

/// Where a run config says what `key` says elsewhere ("it is /optimizer/params/lr here"), or that and why nothing says
/// it; "" for a key that no other trainer has.
[[nodiscard]] std::string foreign_key(std::string_view key);
/// "/optimizer/params/lr" alone; "" where it is nowhere.
[[nodiscard]] std::string foreign_place(std::string_view key);

}  // namespace stagecraft
