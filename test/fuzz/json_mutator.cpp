// How libFuzzer changes an input of the targets that read JSON: half of the time as bytes, which tries the
// parser, and half of the time value by value. Link it to a target, and libFuzzer finds it by its name.

#include "test/fuzz/json_changes.h"

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t max_size,
                                               unsigned int seed) {
  using namespace stagecraft;
  if (seed % 2 == 1) {
    const std::string changed = fuzz::change_json(std::string(data, data + size), seed / 2);
    if (!changed.empty()) return fuzz::put(changed, data, max_size);
  }
  return LLVMFuzzerMutate(data, size, max_size);
}
