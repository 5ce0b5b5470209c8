#pragma once

// Changes to a JSON text value by value, which tries what lies behind the parser: numbers at which something
// ends, values from elsewhere in the same text, keys and elements left out or doubled.

#include <cstddef>
#include <cstdint>
#include <string>

namespace stagecraft::fuzz {

/// `text` with one to three changes; "" where it is not JSON. The same seed makes the same changes.
[[nodiscard]] std::string change_json(const std::string& text, unsigned seed);

/// Puts `text`, or as much of it as there is room for, where libFuzzer expects a mutator's result. Returns
/// its size.
std::size_t put(const std::string& text, std::uint8_t* data, std::size_t max_size);

/// As a mutator, of a target that reads JSON: half of the time as bytes, which tries the parser, and half of
/// the time value by value.
std::size_t mutate_json(std::uint8_t* data, std::size_t size, std::size_t max_size, unsigned seed);

}  // namespace stagecraft::fuzz
