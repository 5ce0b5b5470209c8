#pragma once

// Options whose values are numbers within bounds. What is refused is said in our words, since those of CLI11
// differ from version to version: "--steps: expected 1 to 10000, found 0".

#include <CLI/CLI.hpp>

#include <string>
#include <vector>

namespace stagecraft::cli {

/// Takes numbers from `least` to `most` alone, both included; of integers, whole ones. For
/// CLI::Option::check(). `Number` is int, std::int64_t or double; CLI11 itself takes what is too large for an
/// integer as the nearest that is not.
template <class Number>
[[nodiscard]] CLI::Validator from_to(Number least, Number most);

/// Takes 0 and more. `Number` is std::int64_t or std::uint64_t.
template <class Number>
[[nodiscard]] CLI::Validator not_negative();

/// Takes finite numbers above 0.
[[nodiscard]] CLI::Validator positive();

/// An option of whole numbers from `least` to `most` with commas between them, all of which come at once: "4,9,14". (A
/// delimiter of CLI11 drops an empty one at the end and reads others as 0.)
template <class Number>
CLI::Option* add_numbers(CLI::App& verb, const std::string& name, std::vector<Number>& numbers, Number least,
                         Number most, const std::string& help);

}  // namespace stagecraft::cli
