#include "models/data/dataset.h"
#include "models/data/idx.h"
#include "test/models/data_files.h"
#include "test/support/catch.h"

#include <ATen/ATen.h>

namespace stagecraft::test {
namespace {

using Catch::Matchers::ContainsSubstring;

/// Three training and two validation images of 2 x 3.
void write_good(const DataFolder& folder) {
  folder.write("train-images-idx3-ubyte",
               idx({3, 2, 3}, std::string("\0\1\2\3\4\5abcdef\xFF\xFE\xFD\xFC\xFB\xFA", 18)));
  folder.write("train-labels-idx1-ubyte", idx({3}, std::string("\2\0\1", 3)));
  folder.write_gz("t10k-images-idx3-ubyte.gz", idx({2, 2, 3}, "ABCDEFGHIJKL"));
  folder.write_gz("t10k-labels-idx1-ubyte.gz", idx({2}, std::string("\1\2", 2)));
}

DataConfig config_of(const DataFolder& folder) { return {IdxDataConfig{folder.path()}}; }

TEST_CASE("IDX: plain and gzip files are read, normalized and picked by index", "[data]") {
  const DataFolder folder;
  write_good(folder);
  const auto data = open_dataset(config_of(folder), {"run.json", "/data"});
  CHECK(data->size(Split::train) == 3);
  CHECK(data->size(Split::validation) == 2);
  CHECK((data->sample().shape == std::vector<std::int64_t>{1, 2, 3}));
  CHECK(data->sample().dtype == at::kFloat);
  CHECK(data->sample().classes == 3);
  CHECK_THAT(data->summary(), ContainsSubstring("3 training and 2 validation images of 2 x 3, 3 classes"));

  const at::Tensor images = data->inputs(Split::train, {2, 0});
  REQUIRE(images.sizes() == at::IntArrayRef({2, 1, 2, 3}));
  const auto value = [&](int i, int y, int x) { return images.index({i, 0, y, x}).item<double>(); };
  CHECK(value(0, 0, 0) == Approx((1.0 - 0.2860) / 0.3530));
  CHECK(value(0, 1, 2) == Approx((250.0 / 255 - 0.2860) / 0.3530));
  CHECK(value(1, 0, 0) == Approx(-0.2860 / 0.3530));
  CHECK(value(1, 1, 0) == Approx((3.0 / 255 - 0.2860) / 0.3530));
  CHECK(at::equal(data->targets(Split::train, {2, 0, 1}), at::tensor({1, 2, 0}, at::kLong)));
  CHECK(at::equal(data->targets(Split::validation, {1}), at::tensor({2}, at::kLong)));
}

TEST_CASE("IDX: the fingerprint follows the bytes, not how they are packed", "[data]") {
  const DataFolder plain, packed, changed;
  for (const DataFolder* folder : {&plain, &packed, &changed}) write_good(*folder);
  packed.write_gz("train-images-idx3-ubyte.gz", packed.read("train-images-idx3-ubyte"));
  std::filesystem::remove(packed.path("train-images-idx3-ubyte"));
  changed.write("train-labels-idx1-ubyte", idx({3}, std::string("\2\1\1", 3)));
  const auto print = [](const DataFolder& folder) {
    return open_dataset(config_of(folder), {})->fingerprint();
  };
  CHECK(print(plain) == print(packed));
  CHECK(print(plain) != print(changed));
}

TEST_CASE("IDX: what is wrong with a file is said with its name", "[data]") {
  const DataFolder folder;
  write_good(folder);
  const std::string images = folder.read("train-images-idx3-ubyte");
  const std::string packed = folder.read("t10k-images-idx3-ubyte.gz");
  // No section may return early: Catch would never see those after it.
  std::string expected, also;

  SECTION("missing") {
    std::filesystem::remove(folder.path("t10k-labels-idx1-ubyte.gz"));
    expected = "t10k-labels-idx1-ubyte: no such file";
    also = "run scripts/fetch_data.sh --fashion";
  }
  SECTION("shorter than its header") {
    folder.write("train-images-idx3-ubyte", images.substr(0, 9));
    expected = "truncated: 9 bytes, its header alone takes 16";
  }
  SECTION("shorter than its header promises") {
    folder.write("train-images-idx3-ubyte", images.substr(0, images.size() - 1));
    expected = "truncated: 17 bytes of data, its header promises 18 (3 x 2 x 3)";
  }
  SECTION("longer than its header promises") {
    folder.write("train-images-idx3-ubyte", images + "xy");
    expected = "has more than the 18 bytes its header promises";
  }
  SECTION("another kind of IDX file") {
    folder.write("train-images-idx3-ubyte", folder.read("train-labels-idx1-ubyte") + "            ");
    expected = "magic 0x00000801, expected 0x00000803";
  }
  SECTION("sizes whose product overflows") {
    folder.write("train-images-idx3-ubyte", idx({0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF}, "x"));
    expected = "impossible size 4294967295 in dimension 1";
  }
  SECTION("more promised than this machine has memory") {
    folder.write("train-images-idx3-ubyte", idx({0xFFFFFFFF, 4096, 4096}, "x"));
    expected = "more than half of what is free: ";
  }
  SECTION("no images") {
    folder.write("train-images-idx3-ubyte", idx({0, 2, 3}, ""));
    expected = "impossible size 0 in dimension 0";
  }
  SECTION("fewer labels than images") {
    folder.write("train-labels-idx1-ubyte", idx({2}, std::string("\2\0", 2)));
    expected = "train-labels-idx1-ubyte: 2 labels, but ";
    also = "train-images-idx3-ubyte has 3 images";
  }
  SECTION("validation images of another size") {
    folder.write_gz("t10k-images-idx3-ubyte.gz", idx({2, 3, 2}, "ABCDEFGHIJKL"));
    expected = "images of 3 x 2, but those of ";
  }
  SECTION("a validation label that training has not") {
    folder.write_gz("t10k-labels-idx1-ubyte.gz", idx({2}, std::string("\1\3", 2)));
    expected = "has label 3, the largest of ";
  }
  SECTION("gzip cut short") {
    folder.write("t10k-images-idx3-ubyte.gz", packed.substr(0, packed.size() - 6));
    expected = "truncated: the gzip stream has no end";
  }
  SECTION("gzip with a flipped bit") {
    std::string broken = packed;
    broken[broken.size() - 6] = static_cast<char>(broken[broken.size() - 6] ^ 0x10);  // in its checksum
    folder.write("t10k-images-idx3-ubyte.gz", broken);
    expected = "corrupt gzip file";
  }
  SECTION("not gzip at all") {
    folder.write("t10k-images-idx3-ubyte.gz", idx({2, 2, 3}, "ABCDEFGHIJKL"));
    expected = "not a gzip file";
  }
  CHECK_THAT(refusal(config_of(folder)), ContainsSubstring("run.json: /data/path: " + folder.path()) &&
                                             ContainsSubstring(expected) && ContainsSubstring(also));
}

TEST_CASE("IDX: the excerpt of Fashion-MNIST", "[data]") {
  const auto data = open_dataset({IdxDataConfig{STAGECRAFT_TEST_DATA "/fashion"}}, {});
  CHECK(data->size(Split::train) == 512);
  CHECK(data->size(Split::validation) == 128);
  CHECK((data->sample().shape == std::vector<std::int64_t>{1, 28, 28}));
  CHECK(data->sample().classes == 10);
  std::vector<std::int64_t> all(512);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::int64_t>(i);
  const at::Tensor images = data->inputs(Split::train, all);
  CHECK(std::abs(images.mean().item<double>()) < 0.1);  // the whole set's constants fit the excerpt
  CHECK(std::abs(images.std().item<double>() - 1) < 0.1);
}

}  // namespace
}  // namespace stagecraft::test
