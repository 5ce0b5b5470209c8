#pragma once

// Catch2 2 (Debian 12) or 3 (newer systems), whichever is installed.

// LibTorch's logging defines CHECK too, one that aborts. Where LibTorch is linked its header comes first, so
// that no later include brings that CHECK back.
#if __has_include(<c10/util/Logging.h>)
#include <c10/util/Logging.h>
#undef CHECK
#endif

#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
using Catch::Approx;
#else
#include <catch2/catch.hpp>
namespace Catch::Matchers {
/// As Catch2 3 calls it, where Contains is about elements.
inline StdString::ContainsMatcher ContainsSubstring(const std::string& part) { return Contains(part); }
}  // namespace Catch::Matchers
#endif
