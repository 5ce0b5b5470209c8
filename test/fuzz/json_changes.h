#pragma once

// Changes to a JSON text value by value, which tries what lies behind the parser: numbers at which something
// ends, values from elsewhere in the same text, keys and elements left out or doubled.

#include <cstddef>
#include <cstdint>
#include <string>

// libFuzzer's own changes, byte by byte, for custom mutators.
extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t max_size);

namespace stagecraft::fuzz {

/// `text` with one to three changes; "" where it is not JSON. The same seed makes the same changes.
[[nodiscard]] std::string change_json(const std::string& text, unsigned seed);

/// Puts `text`, or as much of it as there is room for, where libFuzzer expects a mutator's result. Returns
/// its size.
std::size_t put(const std::string& text, std::uint8_t* data, std::size_t max_size);

}  // namespace stagecraft::fuzz
