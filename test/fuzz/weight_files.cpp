// An index of weight files, beside two files that it may name. Each tensor that it has is asked for by its name, in two
// types.

#include "models/captured/format/weight_files.h"

#include "base/error.h"
#include "models/tensors/safetensors_writer.h"
#include "test/fuzz/json_changes.h"
#include "test/fuzz/judge.h"
#include "test/fuzz/scratch_folder.h"
#include "test/fuzz/target.h"

#include <ATen/ops/ones.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace stagecraft::fuzz {
namespace {

class Folder {
 public:
  Folder() {
    const auto numbers = [](std::vector<std::int64_t> shape) { return at::ones(shape, at::kFloat); };
    write_safetensors(folder_.path("model-1.safetensors"), {{"a", numbers({2, 3})}, {"b", numbers({3})}}, {});
    write_safetensors(folder_.path("model-2.safetensors"), {{"c", numbers({2, 3})}}, {});
  }
  [[nodiscard]] std::string index(const std::string& text) const {
    return folder_.write("model.safetensors.index.json", text);
  }

 private:
  ScratchFolder folder_;
};

}  // namespace
}  // namespace stagecraft::fuzz

FUZZ_MUTATOR(weight_files) { return stagecraft::fuzz::mutate_json(data, size, max_size, seed); }

FUZZ_TARGET(weight_files) {
  using namespace stagecraft;
  static const fuzz::Folder folder;
  const std::string path = folder.index(std::string(data, data + size));
  try {
    captured::WeightFiles files(path);
    fuzz::accepted();
    for (const auto& [name, file] : files.file_of()) {
      for (const char* type : {"f32[2,3]", "bf16[3]"}) {
        const captured::ValueType wanted = captured::parse_value_type(type, {"x", ""});
        try {
          files.check(name, wanted);
        } catch (const InputError&) {
          continue;
        }
        fuzz::require(files.tensor(name, wanted).scalar_type() == wanted.dtype, "a tensor has its type");
      }
    }
  } catch (const InputError&) {
  }
  return 0;
}
