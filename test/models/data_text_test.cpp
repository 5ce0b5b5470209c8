#include "models/data/data_file.h"
#include "models/data/dataset.h"
#include "models/data/text.h"
#include "test/models/data_files.h"
#include "test/support/catch.h"
#include "test/support/simulated_disk.h"

#include <ATen/ATen.h>

namespace stagecraft::test {
namespace {

using Catch::Matchers::ContainsSubstring;

DataConfig text(const DataFolder& folder, const std::string& tokens, std::int64_t sequence,
                double validation) {
  return {TextDataConfig{folder.path("text.txt"), tokens, sequence, validation}};
}

TEST_CASE("text: windows do not overlap, targets are the next token, validation is the end", "[data]") {
  const DataFolder folder;
  folder.write("text.txt", "abcdefghijklmnopqrst");  // 20: 15 to train on, 5 held back
  const auto data = open_dataset(text(folder, "bytes", 4, 0.25), {});
  CHECK(data->size(Split::train) == 3);  // (15 - 1) / 4
  CHECK(data->size(Split::validation) == 1);
  CHECK((data->sample().shape == std::vector<std::int64_t>{4}));
  CHECK(data->sample().dtype == at::kLong);
  CHECK(data->sample().classes == 256);
  CHECK(at::equal(data->inputs(Split::train, {2, 0}),
                  at::tensor({'i', 'j', 'k', 'l', 'a', 'b', 'c', 'd'}, at::kLong).view({2, 4})));
  CHECK(at::equal(data->targets(Split::train, {2, 0}),
                  at::tensor({'j', 'k', 'l', 'm', 'b', 'c', 'd', 'e'}, at::kLong).view({2, 4})));
  CHECK(at::equal(data->inputs(Split::validation, {0}),
                  at::tensor({'p', 'q', 'r', 's'}, at::kLong).view({1, 4})));
  CHECK(at::equal(data->targets(Split::validation, {0}),
                  at::tensor({'q', 'r', 's', 't'}, at::kLong).view({1, 4})));
}

TEST_CASE("text: bytes above 127 stay positive", "[data]") {
  const DataFolder folder;
  folder.write("text.txt", "\xFF\x80\x7F");
  const auto data = open_dataset(text(folder, "bytes", 2, 0), {});
  CHECK(at::equal(data->inputs(Split::train, {0}), at::tensor({255, 128}, at::kLong).view({1, 2})));
  CHECK(data->size(Split::validation) == 0);
}

TEST_CASE("text: characters are ranked by code point among those that occur", "[data]") {
  const DataFolder folder;
  folder.write("text.txt", "b\u00E9a\u20AC\U0001F600b");
  const auto data = open_dataset(text(folder, "characters", 5, 0), {});
  CHECK(data->sample().classes == 5);
  CHECK(at::equal(data->inputs(Split::train, {0}), at::tensor({1, 2, 0, 3, 4}, at::kLong).view({1, 5})));
  CHECK(at::equal(data->targets(Split::train, {0}), at::tensor({2, 0, 3, 4, 1}, at::kLong).view({1, 5})));
}

TEST_CASE("text: vocabularies that need one, two and four bytes per token", "[data]") {
  const auto [characters, repeats] =
      GENERATE(table<int, int>({{256, 2}, {257, 2}, {65'536, 1}, {65'537, 1}}));
  CAPTURE(characters);
  // Code points of one to four bytes, from the last one down, so that ranks run against the text.
  std::string bytes;
  for (int round = 0; round < repeats; ++round) {
    for (int k = characters; k-- > 0;) {
      const int point = k < 100 ? k : 0x10000 + k;
      if (point < 0x80) {
        bytes += static_cast<char>(point);
      } else {
        for (const int part : {0xF0 | (point >> 18), 0x80 | ((point >> 12) & 0x3F),
                               0x80 | ((point >> 6) & 0x3F), 0x80 | (point & 0x3F)}) {
          bytes += static_cast<char>(part);
        }
      }
    }
  }
  const DataFolder folder;
  folder.write("text.txt", bytes);
  const auto data = open_dataset(text(folder, "characters", characters * repeats - 1, 0), {});
  CHECK(data->sample().classes == characters);
  const at::Tensor once = at::arange(characters - 1, -1, -1, at::kLong);
  const at::Tensor all = once.repeat({repeats});
  CHECK(at::equal(data->inputs(Split::train, {0})[0], all.slice(0, 0, -1)));
  CHECK(at::equal(data->targets(Split::train, {0})[0], all.slice(0, 1)));
}

TEST_CASE("text: what cannot be read is refused with its place", "[data]") {
  const DataFolder folder;
  SECTION("missing") {
    CHECK_THAT(refusal(text(folder, "bytes", 4, 0)), ContainsSubstring("run.json: /data/path: ") &&
                                                         ContainsSubstring("no such file") &&
                                                         !ContainsSubstring("fetch_data"));
    const TextDataConfig example{folder.path("shakespeare.txt"), "bytes", 4, 0};
    CHECK_THAT(refusal({example}), ContainsSubstring("run scripts/fetch_data.sh --text"));
  }
  SECTION("empty") {
    folder.write("text.txt", "");
    CHECK_THAT(refusal(text(folder, "bytes", 4, 0)),
               ContainsSubstring("too short: 0 of 0 bytes are for training"));
  }
  SECTION("one token short of a window") {
    folder.write("text.txt", "abcd");
    CHECK_THAT(refusal(text(folder, "bytes", 4, 0)),
               ContainsSubstring("too short: 4 of 4 bytes are for training, one sample takes 5"));
  }
  SECTION("validation part shorter than a window") {
    folder.write("text.txt", "abcdefghijkl");
    CHECK_THAT(refusal(text(folder, "bytes", 4, 0.25)),
               ContainsSubstring("too short: 3 of 12 bytes are for validation, one sample takes 5"));
  }
  SECTION("not UTF-8") {
    for (const char* bad : {"abc\xFF", "abc\xC3", "abc\xC3(", "abc\xC0\x80", "abc\xED\xA0\x80", "abc\x80",
                            "abc\xF4\x90\x80\x80", "abc\xE0\x80\x80"}) {
      INFO(Catch::Detail::stringify(std::string(bad)));
      folder.write("text.txt", bad);
      CHECK_THAT(refusal(text(folder, "characters", 1, 0)), ContainsSubstring("not UTF-8 at byte 3"));
    }
  }
}

TEST_CASE("text: the fingerprint follows text and windows", "[data]") {
  const DataFolder folder;
  folder.write("text.txt", "abcdefghijklmnop");
  const auto print = [&](std::int64_t sequence, double validation) {
    return open_dataset(text(folder, "bytes", sequence, validation), {})->fingerprint();
  };
  CHECK(print(2, 0) == print(2, 0));
  CHECK(print(2, 0) != print(3, 0));
  CHECK(print(2, 0) != print(2, 0.5));
}

TEST_CASE("text: the excerpt of Shakespeare", "[data]") {
  const auto data =
      open_dataset({TextDataConfig{STAGECRAFT_TEST_DATA "/text/shakespeare.txt", "characters", 64, 0.1}}, {});
  CHECK(data->size(Split::train) > 1000);
  CHECK(data->size(Split::validation) > 100);
  CHECK(data->sample().classes < 100);
  CHECK(data->inputs(Split::train, {0, 1}).max().item<std::int64_t>() < data->sample().classes);
}

TEST_CASE("data files: what a file holds is bounded before it is read", "[data]") {
  const DataFolder folder;
  const InputPlace place{"run.json", "/data/path"};
  folder.write_gz("zeros.gz", std::string(1U << 22U, '\0'));  // a few kilobytes
  CHECK(read_data_file(folder.path("zeros.gz"), place, {1U << 22U, ""}).size() == 1U << 22U);
  CHECK_THROWS_WITH(read_data_file(folder.path("zeros.gz"), place, {1U << 21U, "half"}),
                    ContainsSubstring("/data/path: ") &&
                        ContainsSubstring("zeros.gz: has more bytes; at most 2097152 are read, half"));
  folder.write("sparse", "");
  std::filesystem::resize_file(folder.path("sparse"), std::uintmax_t{100} << 30U);
  CHECK_THROWS_WITH(open_dataset({TextDataConfig{folder.path("sparse"), "bytes", 4, 0.1}}, place),
                    ContainsSubstring("has 107374182400 bytes; at most"));
}

TEST_CASE("data files: gzip files may have several streams, and padding behind them", "[data]") {
  const DataFolder folder;
  folder.write_gz("a.gz", "first ");
  folder.write_gz("b.gz", std::string(1U << 20U, 'x'));
  folder.write("both.gz", folder.read("a.gz") + folder.read("b.gz") + std::string(512, '\0'));
  CHECK(read_data_file(folder.path("both.gz"), {}, {1U << 24U, ""}) ==
        "first " + std::string(1U << 20U, 'x'));
  folder.write("cut.gz", folder.read("a.gz") + folder.read("b.gz").substr(0, 30));
  CHECK_THROWS_WITH(read_data_file(folder.path("cut.gz"), {}, {1U << 24U, ""}),
                    ContainsSubstring("the gzip stream has no end"));
}

TEST_CASE("data files: a disk that fails is not the end of the data", "[data]") {
  for (std::int64_t call = 0; call < 4; ++call) {
    CAPTURE(call);
    SimulatedDisk disk;
    disk.write("/text", std::string(1U << 19U, 'a'));
    disk.set_fault({DiskFault::Kind::error, call, 5});
    const StorageInstead instead(disk);
    std::size_t read = 0;
    try {
      read = read_data_file("/text", {}, {1U << 24U, ""}).size();
    } catch (const InputError& error) {
      CHECK_THAT(error.what(), ContainsSubstring("/text: cannot be "));
    }
    CHECK((read == 0 || read == 1U << 19U));
  }
}

}  // namespace
}  // namespace stagecraft::test
