// Samples as rows of arrays in a safetensors file.

#include "base/json.h"
#include "models/data/arrays.h"
#include "models/tensors/safetensors.h"
#include "models/tensors/safetensors_writer.h"
#include "test/support/catch.h"
#include "test/support/scratch_folder.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <fstream>

namespace stagecraft {
namespace {

using Catch::Matchers::ContainsSubstring;

const InputPlace kData{"run.json", "/data"};

std::string written(const test::ScratchFolder& folder, const std::string& name,
                    const std::map<std::string, at::Tensor>& tensors) {
  write_safetensors(folder.path(name), {tensors.begin(), tensors.end()});
  return folder.path(name);
}

std::string refusal(const ArraysDataConfig& config) {
  try {
    (void)open_arrays(config, kData);
  } catch (const InputError& error) {
    return error.what();
  }
  return "accepted";
}

TEST_CASE("rows of arrays are samples: whole numbers become 64 bits wide", "[data]") {
  const test::ScratchFolder folder;
  const at::Tensor ids = at::arange(12, at::kInt).view({6, 2});
  const at::Tensor mask = at::tensor({1, 0, 1, 1, 0, 1}, at::kByte).view({6, 1});
  ArraysDataConfig config{written(folder, "train.safetensors", {{"ids", ids}, {"mask", mask}}), "", "ids"};
  const auto data = open_arrays(config, kData);
  CHECK(data->size(Split::train) == 6);
  CHECK(data->size(Split::validation) == 0);
  CHECK(at::equal(data->inputs(Split::train, {4, 0}), at::tensor({8, 9, 0, 1}, at::kLong).view({2, 2})));
  CHECK(at::equal(data->field(Split::train, "mask", {1, 2}), at::tensor({0, 1}, at::kLong).view({2, 1})));
  const SampleSpec sample = data->sample();
  CHECK(sample.shape == std::vector<std::int64_t>{2});
  CHECK(sample.dtype == at::kLong);
  CHECK(sample.classes == 12);
  CHECK(sample.targets == Targets::none);
  CHECK_FALSE(sample.field("targets"));
  CHECK(sample.field("mask")->shape == std::vector<std::int64_t>{1});
}

TEST_CASE("targets are classes, tokens or numbers by their array", "[data]") {
  const test::ScratchFolder folder;
  const at::Tensor x = at::zeros({4, 3});
  const auto targets = [&](const at::Tensor& array) {
    return open_arrays({written(folder, "t.safetensors", {{"inputs", x}, {"targets", array}})}, kData)
        ->sample();
  };
  CHECK(targets(at::tensor({0, 2, 1, 0}, at::kLong)).targets == Targets::classes);
  CHECK(targets(at::tensor({0, 2, 1, 0}, at::kLong)).classes == 3);
  CHECK(targets(at::zeros({4, 3}, at::kLong)).targets == Targets::tokens);
  CHECK(targets(at::zeros({4, 2})).targets == Targets::values);
  CHECK(targets(at::zeros({4, 2})).classes == 2);
}

TEST_CASE("arrays that do not go together are refused by name", "[data]") {
  const test::ScratchFolder folder;
  const std::string good = written(folder, "good.safetensors", {{"inputs", at::zeros({4, 3})}});
  CHECK_THAT(refusal({folder.path("none.safetensors")}), ContainsSubstring("none.safetensors"));
  CHECK_THAT(refusal({good, "", "input"}),
             ContainsSubstring("has no array \"input\"; did you mean \"inputs\"?"));
  CHECK_THAT(refusal({good, "", "input"}), ContainsSubstring("/data/inputs"));
  const std::string uneven =
      written(folder, "uneven.safetensors", {{"inputs", at::zeros({4, 3})}, {"mask", at::zeros({5})}});
  CHECK_THAT(refusal({uneven}), ContainsSubstring("\"mask\" has 5 rows, an array before it 4"));
  CHECK_THAT(refusal({written(folder, "one.safetensors", {{"inputs", at::zeros({})}})}),
             ContainsSubstring("is one number, not rows of samples"));
  const std::string other = written(folder, "other.safetensors", {{"inputs", at::zeros({4, 2})}});
  CHECK_THAT(refusal({good, other}), ContainsSubstring("has another type of \"inputs\""));
  CHECK_THAT(refusal({good, other}), ContainsSubstring("/data/validation_path"));
  CHECK(open_arrays({good, good}, kData)->size(Split::validation) == 4);
  CHECK(open_arrays({good}, kData)->fingerprint() != open_arrays({other}, kData)->fingerprint());
}

/// As numpy.save writes it, version 1.
std::string npy(const std::string& descr, const std::string& shape, const std::string& data,
                const std::string& order = "False") {
  std::string header =
      fmt::format("{{'descr': {}, 'fortran_order': {}, 'shape': ({}), }}", descr, order, shape);
  header.resize((header.size() + 11) / 64 * 64 + 64 - 11, ' ');
  header += '\n';
  return std::string("\x93NUMPY\x01\x00", 8) + static_cast<char>(header.size() % 256) +
         static_cast<char>(header.size() / 256) + header + data;
}

TEST_CASE("a folder of .npy files has an array per file", "[data]") {
  const test::ScratchFolder folder;
  const auto put = [&](const std::string& name, const std::string& contents) {
    std::ofstream(folder.path(name), std::ios::binary) << contents;
  };
  put("targets.npy", npy("'|u1'", "3,", {2, 0, 1}));
  put("inputs.npy",
      npy("'<i2'", "3, 2", std::string("\x01\x00\xff\xff\x03\x00\x04\x00\x05\x00\x06\x00", 12)));
  put("notes.txt", "left alone");
  const auto data = open_arrays({folder.path("")}, kData);
  CHECK(data->size(Split::train) == 3);
  CHECK(at::equal(data->inputs(Split::train, {2, 0}), at::tensor({5, 6, 1, -1}, at::kLong).view({2, 2})));
  CHECK(at::equal(data->targets(Split::train, {0, 1}), at::tensor({2, 0}, at::kLong)));
  CHECK(data->sample().targets == Targets::classes);

  const auto refused = [&](const std::string& contents, const std::string& why) {
    put("inputs.npy", contents);
    CHECK_THAT(refusal({folder.path("")}),
               ContainsSubstring("/data/path") && ContainsSubstring("inputs.npy") && ContainsSubstring(why));
  };
  const std::string four(4, '\1');
  refused("no array", "does not begin as numpy.save writes them");
  for (const auto& [type, why] : std::vector<std::pair<std::string, std::string>>{
           {">i4", "little-endian ones, as array.astype('<i4') makes"},
           {">f8", "little-endian ones, as array.astype('<f8') makes"},
           {"<u8", "whole numbers with a sign, as array.astype('<i8') makes"},
           {"<u4", "whole numbers with a sign, as array.astype('<i8') makes"},
           {">u2", "whole numbers with a sign, as array.astype('<i8') makes"},
           {"<f16", "at most 64 bits each, as array.astype('<f8') makes"},
           {"<c8", "real ones"},
           {"<U1", "numbers, and these are texts"},
           {"|S4", "numbers, and these are texts"},
           {"|O", "numbers, and these are texts, dates or objects of Python"},
           {"<M8[ns]", "numbers, and these are texts, dates"},
           {"", "numbers"}}) {
    refused(npy("'" + type + "'", "1,", four), "of type " + type + "; expected " + why);
  }
  refused(npy("[('a', '<i4')]", "1,", four), "records");
  refused(npy("'<i4'", "1,", four, "True"), "numpy.ascontiguousarray");
  refused(npy("'<i4'", "2,", four), "truncated: 4 bytes of data, its header promises 8 (2)");
  refused(npy("'<i4'", "1,", four + four), "has more than its array");
  refused(npy("'<i4'", "-1,", four), "has no shape");
  refused(npy("'<i4'", "281474976710656, 281474976710656", four), "more than any file has");
  refused(npy("'<i4'", "1,", four).substr(0, 30), "truncated: 30 bytes, its header alone has");
}

TEST_CASE("images of bytes become numbers by their channels", "[data]") {
  const test::ScratchFolder folder;
  const at::Tensor images = at::arange(2 * 2 * 1 * 2, at::kByte).view({2, 2, 1, 2});
  const at::Tensor targets = at::tensor({1, 0}, at::kLong);
  ArraysDataConfig config{written(folder, "t.safetensors", {{"inputs", images}, {"targets", targets}})};
  config.mean = {0.5, 0};
  config.deviation = {0.25, 2};
  const auto data = open_arrays(config, kData);
  CHECK(data->sample().dtype == at::kFloat);
  CHECK(data->sample().classes == 2);
  const at::Tensor expected = (images.index_select(0, at::tensor({1}, at::kLong)).to(at::kFloat) / 255 -
                               at::tensor({0.5, 0.0}, at::kFloat).view({1, 2, 1, 1})) /
                              at::tensor({0.25, 2.0}, at::kFloat).view({1, 2, 1, 1});
  CHECK(at::equal(data->inputs(Split::train, {1}), expected));
  CHECK(data->targets(Split::train, {1}).scalar_type() == at::kLong);
  ArraysDataConfig other = config;
  other.mean = {0.4, 0};
  CHECK(open_arrays(other, kData)->fingerprint() != data->fingerprint());
  other.mean = {0.4};
  CHECK_THAT(refusal(other),
             ContainsSubstring("a mean and a deviation for each of 2 channels, found 1 and 2"));
  other = config;
  other.inputs = "targets";
  CHECK_THAT(refusal(other), ContainsSubstring("\"targets\" holds no images of bytes"));
}

}  // namespace
}  // namespace stagecraft
