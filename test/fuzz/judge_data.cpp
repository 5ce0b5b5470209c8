#include "test/fuzz/judge_data.h"

#include "test/fuzz/judge.h"

#include <zlib.h>

#include <algorithm>

namespace stagecraft::fuzz {

void judge_shapes(const Dataset& data) {
  const SampleSpec sample = data.sample();
  for (const Split split : {Split::train, Split::validation}) {
    const std::int64_t size = data.size(split);
    if (size == 0) continue;
    const std::vector<std::int64_t> indices{0, size - 1};
    std::vector<std::int64_t> shape = sample.shape;
    shape.insert(shape.begin(), 2);
    require(data.inputs(split, indices).sizes() == at::IntArrayRef(shape), "inputs have their shape");
    for (const FieldSpec& field : sample.fields) {
      require(data.field(split, field.name, indices).size(0) == 2, "a field has its samples");
    }
    if (sample.targets != Targets::none) {
      require(data.targets(split, indices).size(0) == 2, "targets have their samples");
    }
  }
  require(!data.summary().empty() && !data.fingerprint().empty(), "a data set says what it is");
}

void judge(const Dataset& data) {
  judge_shapes(data);
  const SampleSpec sample = data.sample();
  if (sample.targets != Targets::classes && sample.targets != Targets::tokens) return;
  for (const Split split : {Split::train, Split::validation}) {
    const std::int64_t size = data.size(split);
    if (size == 0) continue;
    const at::Tensor targets = data.targets(split, {0, size - 1});
    const auto* first = targets.const_data_ptr<std::int64_t>();
    require(std::all_of(first, first + targets.numel(),
                        [&](std::int64_t target) { return target >= 0 && target < sample.classes; }),
            "targets are classes");
  }
}

std::string compressed(const std::string& bytes) {
  z_stream stream{};
  constexpr int kGzip = 16 + MAX_WBITS;
  require(deflateInit2(&stream, Z_DEFAULT_COMPRESSION, Z_DEFLATED, kGzip, 8, Z_DEFAULT_STRATEGY) == Z_OK,
          "zlib compresses");
  std::string out(deflateBound(&stream, bytes.size()) + 32, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  require(deflate(&stream, Z_FINISH) == Z_STREAM_END, "zlib compresses");
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

}  // namespace stagecraft::fuzz
