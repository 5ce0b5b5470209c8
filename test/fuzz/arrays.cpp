// Arrays of samples. An input's first byte says what the rest is: one safetensors file (bit 0), or inputs.npy (bit 1) or
// targets.npy beside a good one; and whether images of bytes are scaled (bit 2).

#include "models/data/arrays.h"

#include "base/error.h"
#include "test/fuzz/judge.h"
#include "test/fuzz/judge_data.h"
#include "test/fuzz/scratch_folder.h"
#include "test/fuzz/target.h"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>

namespace stagecraft::fuzz {
namespace {

/// Version 1 of NumPy's format, with its header filled up to 128 bytes.
std::string npy(std::string header, const std::string& values) {
  std::string file("\x93NUMPY\x01\x00\x76\x00", 10);
  header.resize(117, ' ');
  return file + header + "\n" + values;
}

const std::string& good(bool inputs) {
  static const std::string images =
      npy("{'descr': '|u1', 'fortran_order': False, 'shape': (4, 1, 2, 2), }", std::string(16, 'a'));
  static const std::string labels =
      npy("{'descr': '|u1', 'fortran_order': False, 'shape': (4,), }", std::string("\0\1\2\1", 4));
  return inputs ? images : labels;
}

}  // namespace
}  // namespace stagecraft::fuzz

FUZZ_TARGET(arrays) {
  using namespace stagecraft;
  if (size == 0) return 0;
  static const fuzz::ScratchFolder folder;
  static const bool made = std::filesystem::create_directory(folder.path("arrays"));
  fuzz::require(made, "a folder is made");
  const std::uint8_t choice = data[0];
  const std::string bytes(data + 1, data + size);
  ArraysDataConfig config;
  if ((choice & 1U) != 0) {
    config.path = folder.write("arrays.safetensors", bytes);
  } else {
    const bool inputs = (choice & 2U) != 0;
    folder.write(inputs ? "arrays/inputs.npy" : "arrays/targets.npy", bytes);
    folder.write(inputs ? "arrays/targets.npy" : "arrays/inputs.npy", fuzz::good(!inputs));
    config.path = folder.path("arrays");
  }
  if ((choice & 4U) != 0) {
    config.mean = {0.5};
    config.deviation = {0.25};
  }
  try {
    fuzz::judge_shapes(*open_arrays(config, {"x", "/data"}));
    fuzz::accepted();
  } catch (const InputError&) {
  }
  return 0;
}
