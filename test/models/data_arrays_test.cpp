// Samples as rows of arrays in a safetensors file.

#include "stagecraft/base/json.h"
#include "stagecraft/models/data/arrays.h"
#include "stagecraft/models/safetensors.h"
#include "test/support/catch.h"
#include "test/support/scratch_folder.h"

#include <ATen/ATen.h>

namespace stagecraft {
namespace {

using Catch::Matchers::Contains;

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
  CHECK_THAT(refusal({folder.path("none.safetensors")}), Contains("none.safetensors"));
  CHECK_THAT(refusal({good, "", "input"}), Contains("has no array \"input\"; did you mean \"inputs\"?"));
  CHECK_THAT(refusal({good, "", "input"}), Contains("/data/inputs"));
  const std::string uneven =
      written(folder, "uneven.safetensors", {{"inputs", at::zeros({4, 3})}, {"mask", at::zeros({5})}});
  CHECK_THAT(refusal({uneven}), Contains("\"mask\" has 5 rows, an array before it 4"));
  CHECK_THAT(refusal({written(folder, "one.safetensors", {{"inputs", at::zeros({})}})}),
             Contains("is one number, not rows of samples"));
  const std::string other = written(folder, "other.safetensors", {{"inputs", at::zeros({4, 2})}});
  CHECK_THAT(refusal({good, other}), Contains("has another type of \"inputs\""));
  CHECK_THAT(refusal({good, other}), Contains("/data/validation_path"));
  CHECK(open_arrays({good, good}, kData)->size(Split::validation) == 4);
  CHECK(open_arrays({good}, kData)->fingerprint() != open_arrays({other}, kData)->fingerprint());
}

}  // namespace
}  // namespace stagecraft
