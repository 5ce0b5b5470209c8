#include "cli/number_ranges.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>
#include <type_traits>

namespace stagecraft::cli {
namespace {

template <class Number>
std::optional<Number> number_in(std::string_view text) {
  if (text.starts_with('+')) text.remove_prefix(1);
  Number value{};
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || stop != text.data() + text.size()) return std::nullopt;
  return value;
}

/// Without an exponent: "0.000001", "1000000000000".
template <class Number>
std::string decimal(Number number) {
  if constexpr (std::is_integral_v<Number>) {
    return fmt::format("{}", number);
  } else {
    std::string text = fmt::format("{:f}", number);
    text.erase(text.find_last_not_of('0') + 1);
    if (text.back() == '.') text.pop_back();
    return text;
  }
}

template <class Number>
CLI::Validator within(Number least, Number most, const std::string& expected) {
  const auto judge = [=](const std::string& text) {
    const std::optional<Number> value = number_in<Number>(text);
    if (value && *value >= least && *value <= most) return std::string();  // not so for nan
    return fmt::format("expected {}, found {}", expected, text);
  };
  return {judge, ""};
}

}  // namespace

template <class Number>
CLI::Validator from_to(Number least, Number most) {
  return within(least, most, fmt::format("{} to {}", decimal(least), decimal(most)));
}

template <class Number>
CLI::Validator not_negative() {
  return within(Number{}, std::numeric_limits<Number>::max(), "0 or more");
}

CLI::Validator positive() {
  return within(std::numeric_limits<double>::denorm_min(), std::numeric_limits<double>::max(),
                "a number above 0");
}

template <class Number>
CLI::Option* add_numbers(CLI::App& verb, const std::string& name, std::vector<Number>& numbers, Number least,
                         Number most, const std::string& help) {
  const auto take = [=, &numbers](const std::string& text) {
    numbers.clear();
    std::string_view left = text;
    bool more = true;
    while (more) {
      const std::size_t comma = left.find(',');
      more = comma != std::string_view::npos;
      const std::optional<Number> number = number_in<Number>(left.substr(0, comma));
      if (!number || *number < least || *number > most) {
        throw CLI::ValidationError(
            name, fmt::format("expected whole numbers from {} to {} with commas between them, found \"{}\"",
                              least, most, text));
      }
      numbers.push_back(*number);
      if (more) left.remove_prefix(comma + 1);
    }
  };
  return verb.add_option_function<std::string>(name, take, help);
}

template CLI::Validator from_to(int, int);
template CLI::Validator from_to(std::int64_t, std::int64_t);
template CLI::Validator from_to(double, double);
template CLI::Validator not_negative<std::int64_t>();
template CLI::Validator not_negative<std::uint64_t>();
template CLI::Option* add_numbers(CLI::App&, const std::string&, std::vector<int>&, int, int,
                                  const std::string&);
template CLI::Option* add_numbers(CLI::App&, const std::string&, std::vector<std::int64_t>&, std::int64_t,
                                  std::int64_t, const std::string&);

}  // namespace stagecraft::cli
