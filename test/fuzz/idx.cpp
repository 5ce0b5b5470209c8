// IDX files, plain and gzip. An input's first byte says which of the four files of a folder the rest stands
// for (bits 0 and 1), whether it is compressed here (bit 2), so that changes get past the gzip's checksum,
// and whether it is named .gz (bit 3); the other three files are good ones of two 2 x 2 images.

#include "models/data/idx.h"

#include "base/error.h"
#include "test/fuzz/judge_data.h"
#include "test/fuzz/scratch_folder.h"
#include "test/fuzz/target.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace stagecraft::fuzz {
namespace {

constexpr std::array kNames{"train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte",
                            "t10k-labels-idx1-ubyte"};

const std::string& good(std::size_t which) {
  using namespace std::string_literals;
  static const std::string images = "\0\0\x08\x03\0\0\0\x02\0\0\0\x02\0\0\0\x02"s + "abcdefgh";
  static const std::string labels = "\0\0\x08\x01\0\0\0\x02\0\x01"s;
  return which % 2 == 0 ? images : labels;
}

}  // namespace
}  // namespace stagecraft::fuzz

FUZZ_TARGET(idx) {
  using namespace stagecraft;
  if (size == 0) return 0;
  static const fuzz::ScratchFolder folder;
  const std::uint8_t choice = data[0];
  const std::size_t which = choice % fuzz::kNames.size();
  const std::string plain = fuzz::kNames[which];
  const std::string zipped = plain + ".gz";
  for (std::size_t file = 0; file < fuzz::kNames.size(); ++file) {
    if (file != which) folder.write(fuzz::kNames[file], fuzz::good(file));
  }
  const std::string bytes(data + 1, data + size);
  const bool compress = (choice & 4U) != 0, named = (choice & 8U) != 0;
  folder.remove(named ? plain : zipped);
  folder.write(named ? zipped : plain, compress ? fuzz::compressed(bytes) : bytes);
  try {
    fuzz::judge(*open_idx({folder.path()}, {"x", "/data/path"}));
    fuzz::accepted();
  } catch (const InputError&) {
  }
  return 0;
}
