#pragma once

// How a fuzz target is written:
//
//   FUZZ_TARGET(program_text) { what to do with `data` and `size`; return 0; }
//
// and, where changed bytes would seldom get past a parser, how an input of it is changed:
//
//   FUZZ_MUTATOR(metrics) { changes `data`, of `size` bytes with room for `max_size`, by `seed`; return the new size; }
//
// A target says accepted() where the reader took the input.
//
// With libFuzzer each target is a program, in which libFuzzer looks for its own names. Among the tests many
// are one program (replay.cpp), which looks for theirs.

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

namespace stagecraft::fuzz {

inline std::size_t accepted_inputs = 0;
/// The reader has let this input through. Where none of a target's seeds is, nothing behind the reader is tried.
inline void accepted() { ++accepted_inputs; }

}  // namespace stagecraft::fuzz

/// libFuzzer's own changes, byte by byte, for mutators.
extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t max_size);

#ifdef STAGECRAFT_FUZZ

#define FUZZ_TARGET(name) extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size)
#define FUZZ_MUTATOR(name)                                                                                   \
  extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t max_size, \
                                                 unsigned int seed)

#else

namespace stagecraft::fuzz {

struct Target {
  int (*run)(const std::uint8_t* data, std::size_t size) = nullptr;
  /// nullptr: byte by byte.
  std::size_t (*mutate)(std::uint8_t* data, std::size_t size, std::size_t max_size, unsigned seed) = nullptr;
};
/// By name.
[[nodiscard]] std::map<std::string, Target>& targets();

}  // namespace stagecraft::fuzz

#define FUZZ_TARGET(name)                                                                               \
  static int run_##name(const std::uint8_t* data, std::size_t size);                                    \
  [[maybe_unused]] static const auto runs_##name = stagecraft::fuzz::targets()[#name].run = run_##name; \
  static int run_##name(const std::uint8_t* data, std::size_t size)
#define FUZZ_MUTATOR(name)                                                                        \
  static std::size_t mutate_##name(std::uint8_t* data, std::size_t size, std::size_t max_size,    \
                                   unsigned seed);                                                \
  [[maybe_unused]] static const auto mutates_##name = stagecraft::fuzz::targets()[#name].mutate = \
      mutate_##name;                                                                              \
  static std::size_t mutate_##name(std::uint8_t* data, std::size_t size, std::size_t max_size, unsigned seed)

#endif
